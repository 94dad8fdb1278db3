"""TARGET -> Python object. The only place where the user's code is imported and called by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiespec.blame import shown
from tiespec.candidates import Candidate, find_candidates, import_place
from tiespec.declared import declaring
from tiespec.elsewhere import Device, on_device
from tiespec.errors import TargetError, UsageError
from tiespec.expression import Target, evaluate, parse_expression, parse_target
from tiespec.guest import Progress, guest, is_out_of_memory
from tiespec.hf import build_model, read_config
from tiespec.lean import without_dynamo
from tiespec.recorder import Record, record_of, recording


@dataclass
class Loaded:
    """What a TARGET is.

    Args:
        text (str): the TARGET, with the name that was picked when it gave none.
        value (Any): an nn.Module, a list of layers, or a PipelineModule.
        record (Record | None): the arguments, for a PipelineModule that was recorded.
        namespace (Any): the module it was found in; None for a transformers config.
        notes (list[str]): what was done differently from what the user may expect.
        rebuild (Callable[[Device], Any]): builds it again on another device.
        models (list[Any]): whole models that were constructed on the way.
    """

    text: str
    value: Any
    record: Record | None
    namespace: Any
    notes: list[str]
    rebuild: Callable[[Device], Loaded] = field(repr=False)
    models: list[Any] = field(default_factory=list, repr=False)


def load_target(text: str, setup: str | None = None, progress: Progress = lambda phase: None) -> Loaded:
    """Import what a TARGET names and build it on the meta device, or on the CPU where that is refused.

    Args:
        text (str): see DESIGN, "TARGET".
        setup (str | None): ``pkg.mod:function`` or ``file.py:function``, called before the target is imported.
        progress (Progress): called with each phase.

    Raises:
        UsageError: the TARGET is malformed, or names nothing.
        TargetError: the user's code failed.
    """
    target = parse_target(text)
    sys.argv[:] = [target.source]
    with recording() as record:
        if setup is not None:
            run_setup(setup)
        if target.kind == "hf":
            return _load_config(target, progress)
        progress(f"importing {target.source}")
        namespace = _import_source(target, keep=setup is not None)
    expression = target.expression or _pick(target, namespace)
    node = parse_expression(expression)

    def make() -> Any:
        return _called(expression, evaluate(node, namespace, _call))

    loaded = _build(f"{target.source}:{expression}", make, namespace, "meta", progress)
    loaded.notes[:0] = record.notes
    return loaded


def load_for_real(text: str, setup: str | None = None) -> tuple[Any, Any]:
    """What a TARGET is when nothing is recorded or kept from it: with a process group, a PipelineModule builds its stage.

    Args:
        text (str): TARGET.
        setup (str | None): called before.

    Returns:
        The value, and the module it was found in (None for a transformers config).

    Raises:
        UsageError: the TARGET is malformed, or names nothing.
        TargetError: the user's code failed.
    """
    target = parse_target(text)
    sys.argv[:] = [target.source]
    if setup is not None:
        run_setup(setup)
    if target.kind == "hf":
        raise UsageError("a transformers config is no sequence of layers", "name a function that gives the layers of the model")
    namespace = _import_source(target, keep=setup is not None)
    expression = target.expression or _pick(target, namespace)
    return _called(expression, evaluate(parse_expression(expression), namespace, _call)), namespace


def load_object(value: Any, name: str, namespace: Any) -> Loaded:
    """The same for an object; a class or function is called without arguments, as a TARGET would be.

    Args:
        value (Any): a module, a list of layers, or a class or function that gives one.
        name (str): how reports call it.
        namespace (Any): may have ``example_inputs`` and ``loss_fn``.

    Raises:
        TargetError: the call failed.
    """
    return _build(name, lambda: _called(name, value), namespace, "meta", lambda phase: None)


def run_setup(text: str) -> None:
    """Call the function that ``--setup`` names."""
    function = load_function(text, "--setup")
    if callable(function):
        with guest(f"running --setup {text}"):
            function()


def load_function(text: str, option: str) -> Any:
    """The function that an option names.

    Raises:
        UsageError: it names no function.
        TargetError: its file does not load.
    """
    target = parse_target(text)
    if target.kind == "hf" or not target.expression:
        raise UsageError(f"{option} {text!r} names no function", "write pkg.mod:function or FILE.py:function")
    return evaluate(parse_expression(target.expression), _import_source(target, keep=True), _call)


def _import_source(target: Target, keep: bool = False) -> Any:
    """Import the TARGET's file or module; ``keep`` what --setup has imported from the same file and changed."""
    with guest(f"importing {target.source}"):
        return _import_file(target.source, keep) if target.kind == "file" else _import_module(target.source)


def _import_module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise UsageError(f"there is no module {name!r} here or in this environment", "for a file, write its path: model.py")
    return importlib.import_module(name)


def _import_file(path: str, keep: bool) -> Any:
    """Import a file as Python would: as a script, or as a submodule when it is one or has relative imports."""
    file = Path(path).resolve()
    folder, name = import_place(file)
    sys.path[:0] = list(dict.fromkeys([str(folder), str(file.parent)]))
    if "." in name:
        return importlib.import_module(name)
    known = {getattr(sys.modules.get(n), "__file__", None): n for n in (f"_target_{name}", name)}
    if keep and str(file) in known:
        return sys.modules[known[str(file)]]
    if name in sys.stdlib_module_names or (name in sys.modules and known.get(str(file)) != name):
        name = f"_target_{name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # as Python does: the next import starts anew
        raise
    return module


def _pick(target: Target, namespace: Any) -> str:
    """The expression to evaluate when the TARGET gives none."""
    file = getattr(namespace, "__file__", None)
    candidates = find_candidates(Path(file).read_bytes() if file else b"")
    if len(candidates) == 1 and not candidates[0].required:
        return candidates[0].name
    if not candidates:
        raise UsageError(
            f"{target.source} defines no layers, no PipelineModule and no module at its top level",
            f"name what builds the layers: {target.source}:NAME",
        )
    what = "needs arguments" if len(candidates) == 1 else f"defines {len(candidates)} candidates"
    commands = "\n".join(f"  {target.source}:{_as_typed(c)}" for c in candidates)
    raise UsageError(f"{target.source} {what}; give the one you mean as TARGET", f"type one of\n{commands}")


def _as_typed(candidate: Candidate) -> str:
    if not candidate.required or "." in candidate.name:
        return candidate.name
    return f"{candidate.name}({', '.join(f'{name}=...' for name in candidate.required)})"


def _build(text: str, make: Callable[[], Any], namespace: Any, device: Device, progress: Progress) -> Loaded:
    notes: list[str] = []
    models: list[Any] = list(vars(namespace).values()) if isinstance(namespace, types.ModuleType) else []
    progress(f"building {text}")
    try:
        value, record = _recorded(make, device, notes, models)
    except TargetError as error:
        if device == "cpu" or not _may_be_meta(error.__cause__):
            raise
        notes.append(f"{text} does not build on the meta device, so it was built on the CPU ({error})")
        value, record = _recorded(make, "cpu", notes, models)

    def rebuild(device: Device) -> Loaded:
        return _build(text, make, namespace, device, progress)

    return Loaded(text, value, record, namespace, notes, rebuild, declaring(models))


def _may_be_meta(error: BaseException | None) -> bool:
    """Whether building on the CPU may succeed where building on meta failed."""
    never = (ImportError, SyntaxError, NameError, RecursionError)
    return isinstance(error, Exception) and not isinstance(error, never) and not is_out_of_memory(error)


def _recorded(make: Callable[[], Any], device: Device, notes: list[str], models: list[Any]) -> tuple[Any, Record | None]:
    with recording() as seen, on_device(device), without_dynamo():
        try:
            value = make()
            models += seen.models
        except TargetError as error:
            if not seen.records:  # the constructor went on after PipelineModule.__init__ and missed what that builds
                raise
            notes.append(f"layers were recorded; the constructor then stopped: {error}")
            record = seen.records[-1]
            return record.layers, record
    notes.extend(seen.notes)
    return value, record_of(value) if _is_module(value) else None


def _is_module(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _called(text: str, value: Any) -> Any:
    """Call what was named until it is a module or a list of layers."""
    for _ in range(3):
        is_function = isinstance(value, (types.FunctionType, types.MethodType, type))
        if not is_function:
            return value
        value = _call(text, value, [], {})
    return value


def _call(text: str, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not callable(function):
        raise UsageError(f"{text} is a {type(function).__name__} and cannot be called", "leave out the parentheses")
    _check_arguments(text, function, args, kwargs)
    with guest(f"calling {text}"):
        return function(*args, **kwargs)


def _check_arguments(text: str, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none: the call itself will tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        help = f"its signature is {text}{signature}; give the arguments in TARGET: {text}({_missing(signature)})"
        if next(iter(signature.parameters), "") == "self" and "." in text:
            owner, _, method = text.rpartition(".")
            help = f"{method} is a method: write {owner}().{method}, with the arguments that {owner} needs"
        code = getattr(inspect.unwrap(function), "__code__", None)
        file = shown(code.co_filename) if code else None
        raise TargetError(f"{text}: {error}", help, file, code.co_firstlineno if code else None) from error


def _missing(signature: inspect.Signature) -> str:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind not in variable]
    return ", ".join(f"{p.name}=..." for p in required)


def _load_config(target: Target, progress: Progress) -> Loaded:
    progress(f"building {target.text}")
    with guest(f"reading the config of {target.source}"):
        config = read_config(target.source)

    def rebuild(device: Device) -> Loaded:
        with guest(f"building {target.text}"), on_device(device):
            model = build_model(config)
        return Loaded(target.text, model, None, None, [], rebuild)

    return rebuild("meta")
