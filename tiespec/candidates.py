"""Which names of a Python file can be a TARGET, found in its source without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

_SPECS = {"LayerSpec", "TiedLayerSpec", "PipelineModule"}
_TRAINING = {"initialize", "init_distributed", "init_process_group", "train_batch", "parse_args", "backward"}
_MODULES = {"Module", "Sequential", "ModuleList", "PreTrainedModel"}


@dataclass(frozen=True)
class Candidate:
    """A name at the top level of a file that may yield layers or a module.

    Args:
        name (str): the name.
        required (tuple[str, ...]): parameters without a default; the name alone is no complete TARGET if there are any.
        line (int): 1-based.
    """

    name: str
    required: tuple[str, ...]
    line: int


def find_candidates(source: str | bytes) -> tuple[Candidate, ...]:
    """The names that can be a TARGET, the best kind only.

    First come the names that lead to a ``LayerSpec``, ``TiedLayerSpec`` or ``PipelineModule`` and that no other such
    name uses; then lists and calls at the top level; then the module classes. Of each kind those that can be built
    without arguments are preferred.

    Args:
        source (str | bytes): a Python file that parses.
    """
    tree = ast.parse(source)
    for kind in (_pipelines(tree), _lists(tree), _module_classes(tree)):
        complete = tuple(c for c in kind if not c.required)
        if kind:
            return complete or tuple(kind)
    return ()


def _used_names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _pipelines(tree: ast.Module) -> list[Candidate]:
    uses = {_name(node): (node, _used_names(node)) for node in tree.body if _name(node)}
    found = {name for name, (_, used) in uses.items() if used & _SPECS}
    while grown := {n for n, (_, used) in uses.items() if n not in found and used & found}:
        found |= grown
    yielding = {n for n in found if _yields(uses[n][0]) and not (_may_train(uses[n][0]) and uses[n][1] & _TRAINING)}
    inner = {used for n in yielding for used in uses[n][1] if used != n}
    roots = [_candidate(uses[n][0]) for n in uses if n in yielding and n not in inner]
    return roots or [c for n in uses if n in found for c in _methods(uses[n][0])]


def _may_train(node: ast.stmt) -> bool:
    """Whether what uses the training API is a script's main function; a class may start a process group itself."""
    return not isinstance(node, ast.ClassDef)


def _methods(node: ast.stmt) -> list[Candidate]:
    """The methods of a module class that lead to a spec: ``GPT().to_layers``, or ``GPT.layers`` for a class method."""
    if not isinstance(node, ast.ClassDef):
        return []
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and _used_names(m) & _SPECS and _yields(m)]
    found = []
    for method in methods:
        bound_to_class = any(isinstance(d, ast.Name) and d.id in ("classmethod", "staticmethod") for d in method.decorator_list)
        needs = () if bound_to_class else _candidate(node).required
        owner = node.name if bound_to_class else f"{node.name}({', '.join(f'{a}=...' for a in needs)})"
        found.append(Candidate(f"{owner}.{method.name}", needs, method.lineno))
    return found


def _yields(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node))
    if isinstance(node, ast.ClassDef):
        bases = set().union(*[_used_names(b) for b in node.bases])
        return bool(bases) and "Module" not in bases and not bases & {"LayerSpec", "TiedLayerSpec"}
    return isinstance(node, (ast.Assign, ast.AnnAssign))


def _lists(tree: ast.Module) -> list[Candidate]:
    def is_layers(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Call):
            return bool(_used_names(value.func) & {"Sequential", "ModuleList"})
        return isinstance(value, ast.List) and bool(_used_names(value) - {"str", "int", "float"})

    return [_candidate(n) for n in tree.body if isinstance(n, (ast.Assign, ast.AnnAssign)) and _name(n) and is_layers(n.value)]


def _module_classes(tree: ast.Module) -> list[Candidate]:
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    modules = {name for name, c in classes.items() if set().union(*[_used_names(b) for b in c.bases]) & _MODULES}
    inner = {used for name in modules for used in _used_names(classes[name]) if used != name}
    return [_candidate(classes[name]) for name in classes if name in modules and name not in inner]


def _name(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return "" if node.name.startswith("_") else node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _candidate(node: ast.stmt) -> Candidate:
    function: ast.stmt | None = node
    if isinstance(node, ast.ClassDef):
        function = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    required = _required(function) if isinstance(function, ast.FunctionDef) else ()
    return Candidate(_name(node), required[1:] if isinstance(node, ast.ClassDef) else required, node.lineno)


def _required(function: ast.FunctionDef) -> tuple[str, ...]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    keyword = [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    return tuple(a.arg for a in (*required, *keyword))


def import_place(file: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its dotted name: in a package that is the folder above it."""
    folder, name = file.parent, file.stem
    for _ in range(_package_depth(file)):
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


def _package_depth(file: Path) -> int:
    """How many folders above a file belong to its package; relative imports make a package of folders without __init__."""
    tree = ast.parse(file.read_bytes(), str(file))
    relative = max((n.level for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)), default=0)
    depth, folder = 0, file.parent
    while (folder / "__init__.py").exists():
        depth, folder = depth + 1, folder.parent
    return max(depth, relative)
