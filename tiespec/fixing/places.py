"""Where an argument of a spec is written: at the call, at an assignment, or at the call of a function that passes it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import libcst as cst

from tiespec.fixing.source import Source, find_call
from tiespec.pipeline import CallSite

Open = Callable[[str], "Source | None"]
Link = tuple[Source, cst.Call]
Chain = list[Link]

_WRITTEN_OUT = (
    cst.List, cst.Tuple, cst.Set, cst.SimpleString, cst.ConcatenatedString, cst.ListComp, cst.SetComp, cst.GeneratorExp,
    cst.BinaryOperation, cst.Integer,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a value is written, or can be.

    Args:
        file (str): absolute.
        start, end (int): offsets, as in ``Source``: of the expression, or from the last argument to the end of the call.
        keyword (str | None): the argument that the call does not have yet; None for an expression that is replaced.
        source (Source): of the file.
        node (cst.CSTNode): the expression, or the call.
    """

    file: str
    start: int
    end: int
    keyword: str | None
    source: Source = field(compare=False, repr=False)
    node: cst.CSTNode = field(compare=False, repr=False)


def places(calls: tuple[CallSite, ...], name: str, position: int | None, open: Open) -> list[Place]:
    """Where the value of a spec's argument can be changed, the place that most depends on first; none where nothing is sure.

    Args:
        calls (tuple[CallSite, ...]): that made the spec, the innermost first.
        name (str): of the argument.
        position (int | None): of the argument among the positional ones; None for one that has to be named.
        open (Open): path -> the parsed file.
    """
    chain: Chain = []
    for site in calls:
        source = open(site.file)
        call = None if source is None else find_call(source, site)
        if source is None or call is None:
            break
        chain.append((source, call))
    return _argument(chain, 0, name, position) if chain else []


def _argument(chain: Chain, at: int, name: str, position: int | None) -> list[Place]:
    source, call = chain[at]
    given = _given(call, name, position)
    if given is not None:
        return _expression(chain, at, source, given)
    spread = [arg.value for arg in call.args if arg.star == "**"]
    if spread:
        return _passed_on(chain, at, spread, name)
    return [_added(source, call, name)]


def _given(call: cst.Call, name: str, position: int | None) -> cst.BaseExpression | None:
    named = next((arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)
    if named is not None or position is None or position >= len(call.args):
        return named
    first = call.args[: position + 1]
    return None if any(arg.keyword is not None or arg.star for arg in first) else first[-1].value


def _passed_on(chain: Chain, at: int, spread: list[cst.BaseExpression], name: str) -> list[Place]:
    """``f(**kwargs)``: the argument is where the function that has these ``**kwargs`` is called."""
    source, (value, *others) = chain[at][0], spread
    if others or not isinstance(value, cst.Name):
        return []
    params = [node for node in _bindings(source, value) if isinstance(node, cst.Param) and node.star == "**"]
    caller = _caller(chain, at, source, params[0]) if params else None
    return [] if caller is None else _argument(chain, caller, name, None)


def _expression(chain: Chain, at: int, source: Source, node: cst.BaseExpression) -> list[Place]:
    here = [_replaced(source, node)]
    if not isinstance(node, cst.Name):
        return here
    bound = _bindings(source, node)
    if any(isinstance(one, cst.Param) for one in bound):
        return _parameter(chain, at, source, bound[0]) if len(bound) == 1 else []
    value = _assigned(source, node, bound[0]) if len(bound) == 1 else None
    return here if value is None else [_replaced(source, value), *here]


def _bindings(source: Source, name: cst.Name) -> list[cst.CSTNode]:
    """What gives a name its value: a parameter, the target of an assignment, an import."""
    scope = source.scopes.get(name)
    if scope is None or name.value not in scope:
        return []
    return [node for one in scope[name.value] if (node := getattr(one, "node", None)) is not None]


def _assigned(source: Source, name: cst.Name, target: cst.CSTNode) -> cst.BaseExpression | None:
    """The value of ``NAME = [...]``, where it is written out and nothing changes it afterwards."""
    holder = source.parents.get(target)
    statement = source.parents.get(holder) if isinstance(holder, cst.AssignTarget) else holder
    if not isinstance(statement, (cst.Assign, cst.AnnAssign)) or not isinstance(statement.value, _WRITTEN_OUT):
        return None
    if isinstance(statement, cst.Assign) and len(statement.targets) > 1:
        return None
    bound = next(one for one in source.scopes[name][name.value] if one.node is target)
    using = [source.parents.get(access.node) for access in bound.references]
    changed = any(isinstance(one, (cst.Attribute, cst.AugAssign, cst.Subscript, cst.Del)) for one in using)
    return None if changed else statement.value


def _parameter(chain: Chain, at: int, source: Source, param: cst.CSTNode) -> list[Place]:
    """The value of a function's parameter: what its caller gives, else its default."""
    function = _function(source, param)
    if not isinstance(param, cst.Param) or not isinstance(function, cst.FunctionDef) or param.star in ("*", "**"):
        return []
    default = [] if param.default is None else _expression(chain, at, source, param.default)
    caller = _caller(chain, at, source, param)
    if caller is None:
        return default if _outermost(chain, source, function) else []
    calling, call = chain[caller]
    given = _given(call, param.name.value, _position(function, param, source))
    if given is not None:
        return _expression(chain, caller, calling, given)
    return [] if any(arg.star for arg in call.args) else [*default, _added(calling, call, param.name.value)]


def _outermost(chain: Chain, source: Source, function: cst.FunctionDef) -> bool:
    """Whether the user's source calls this function first: its arguments are those of the TARGET."""
    return chain[-1][0] is source and _function(source, chain[-1][1]) is function


def _caller(chain: Chain, at: int, source: Source, param: cst.CSTNode) -> int | None:
    """Which call of the chain is that of the function with this parameter."""
    function = _function(source, param)
    inside = [i for i in range(at, len(chain)) if chain[i][0] is source and _function(source, chain[i][1]) is function]
    if not inside or inside[0] + 1 >= len(chain) or not isinstance(function, cst.FunctionDef):
        return None
    called = chain[inside[0] + 1][1].func
    name = called.attr if isinstance(called, cst.Attribute) else called
    return inside[0] + 1 if isinstance(name, cst.Name) and name.value in _names(source, function) else None


def _names(source: Source, function: cst.FunctionDef) -> tuple[str, ...]:
    """What a call of it may say: its name; for a constructor that of its class."""
    owner = _class(source, function)
    if owner is not None and function.name.value == "__init__":
        return (owner.name.value, "__init__")
    return (function.name.value,)


def _position(function: cst.FunctionDef, param: cst.Param, source: Source) -> int | None:
    positional = [*function.params.posonly_params, *function.params.params]
    if param not in positional:
        return None
    static = any(isinstance(d.decorator, cst.Name) and d.decorator.value == "staticmethod" for d in function.decorators)
    bound = _class(source, function) is not None and not static
    return positional.index(param) - int(bound)


def _function(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    """The function that a node is in."""
    above: cst.CSTNode | None = source.parents.get(node)
    while above is not None and not isinstance(above, (cst.FunctionDef, cst.Lambda)):
        above = source.parents.get(above)
    return above


def _class(source: Source, function: cst.FunctionDef) -> cst.ClassDef | None:
    block = source.parents.get(function)
    owner = source.parents.get(block)
    return owner if isinstance(owner, cst.ClassDef) else None


def _replaced(source: Source, node: cst.BaseExpression) -> Place:
    return Place(source.path, *source.span(node), None, source, node)


def _added(source: Source, call: cst.Call, name: str) -> Place:
    start, end = source.arguments(call)
    return Place(source.path, source.span(call.args[-1])[1] if call.args else start, end, name, source, call)
