"""TARGET strings: which file or module, and which expression in it. Parsed as a syntax tree, never passed to eval."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tiespec.errors import UsageError

GRAMMAR = "a dotted name, or a call whose arguments are literals or again such expressions"
FORMS = "write FILE.py, FILE.py:NAME, package.module:NAME, NAME(arguments) in place of NAME, or hf:FOLDER"


@dataclass(frozen=True)
class Target:
    """A TARGET, taken apart.

    Args:
        text (str): as the user typed it.
        kind: a Python file, an importable module, or a transformers config.
        source (str): path, dotted module name, or the folder or name after ``hf:``.
        expression (str): what to look up in it; empty when the one candidate is to be picked.
    """

    text: str
    kind: Literal["file", "module", "hf"]
    source: str
    expression: str


def parse_target(text: str) -> Target:
    """Take a TARGET apart and check what can be checked without running anything.

    Raises:
        UsageError: the form is unknown, the file does not exist, or the expression is not one of the grammar's.
    """
    if text.startswith("hf:"):
        return _hf_target(text)
    source, _, expression = text.partition(".py:") if ".py:" in text else text.partition(":")
    if ".py:" in text:
        source += ".py"
    if not source:
        raise UsageError(f"TARGET {text!r} names no file and no module", FORMS)
    if text.endswith(":"):
        raise UsageError(f"TARGET {text!r} ends with ':'", f"add the name of the model, or leave out the ':'; {FORMS}")
    if expression:
        parse_expression(expression)
    is_file = source.endswith(".py") or os.sep in source or os.path.exists(source)
    if is_file:
        _check_file(source)
    elif not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", source):
        raise UsageError(f"TARGET {text!r} is neither a Python file nor a module name", FORMS)
    return Target(text, "file" if is_file else "module", source, expression)


def _hf_target(text: str) -> Target:
    source = text[len("hf:") :]
    if not source:
        raise UsageError("TARGET 'hf:' names no config", "write hf:FOLDER, a folder with a config.json")
    return Target(text, "hf", source, "")


def _check_file(path: str) -> None:
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder", f"name the file that builds the model, such as {path.rstrip('/')}/model.py")
    if not os.path.exists(path):
        raise UsageError(f"there is no file {path}", nearest_file(path))
    if not path.endswith(".py"):
        raise UsageError(f"{path} is not a Python file", FORMS)


def nearest_file(path: str) -> str:
    """A sentence that names the nearest Python file in the same folder, or says what the folder holds."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"there is no folder {folder} either"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"this user may not look into the folder {folder}"
    files = sorted(f for f in os.listdir(folder) if f.endswith(".py"))
    near = difflib.get_close_matches(os.path.basename(path), files, n=1)
    if near:
        return f"did you mean {os.path.join(os.path.dirname(path), near[0])}?"
    return f"{folder} holds {', '.join(files[:8]) or 'no Python file'}"


def nearest_name(name: str, names: Iterable[str]) -> str:
    """A sentence that names the nearest of ``names``, or the first few of them."""
    known = sorted(set(names))
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(known[:8])}" if known else "it has no public names"


def parse_expression(text: str) -> ast.expr:
    """Parse and check an expression of the TARGET grammar.

    Raises:
        UsageError: a syntax error, or something that is not of the grammar.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"cannot parse {text!r}: {error}", f"after the ':' comes {GRAMMAR}") from error
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        raise UsageError(f"{text!r} is not a name and not a call", f"after the ':' comes {GRAMMAR}")
    _check(node, text)
    return node


_ALLOWED = (ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Set, ast.Dict)


def _check(node: ast.AST, text: str) -> None:
    if _is_negative_number(node):
        return
    unpacks = (isinstance(node, ast.keyword) and node.arg is None) or (isinstance(node, ast.Dict) and None in node.keys)
    if unpacks or not isinstance(node, _ALLOWED):
        raise UsageError(f"{ast.unparse(node)!r} in {text!r} is not allowed", f"after the ':' comes {GRAMMAR}")
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr_context):
            _check(child, text)


def _is_negative_number(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and type(node.operand.value) in (int, float)
    )


def evaluate(node: ast.expr, namespace: Any, call: Callable[..., Any]) -> Any:
    """Walk an expression that ``parse_expression`` accepted.

    Args:
        node (ast.expr): the expression.
        namespace (Any): the object whose attributes the first names are.
        call (Callable): called as ``call(text, function, args, kwargs)`` for every call.

    Raises:
        UsageError: a name that does not exist.
    """

    def walk(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(operand=ast.Constant(value=value)):
                return -value  # type: ignore[operator]
            case ast.Name(id=name):
                return _attribute(namespace, name, getattr(namespace, "__name__", "the module"))
            case ast.Attribute(value=inner, attr=name):
                return _attribute(walk(inner), name, ast.unparse(inner))
            case ast.List(elts=elements):
                return [walk(e) for e in elements]
            case ast.Tuple(elts=elements):
                return tuple(walk(e) for e in elements)
            case ast.Set(elts=elements):
                return {walk(e) for e in elements}
            case ast.Dict(keys=keys, values=values):
                return {walk(k): walk(v) for k, v in zip(keys, values, strict=True) if k is not None}
            case ast.Call(func=function, args=args, keywords=keywords):
                given = {k.arg: walk(k.value) for k in keywords}
                return call(ast.unparse(function), walk(function), [walk(a) for a in args], given)
        raise AssertionError(f"parse_expression let {ast.dump(node)} through")

    return walk(node)


def _attribute(owner: Any, name: str, owner_text: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        names = [n for n in dir(owner) if not n.startswith("_")]
        raise UsageError(f"{owner_text} has no {name!r}", nearest_name(name, names)) from None
