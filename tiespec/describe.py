"""Layers as data: what was built -> ``Layer`` and ``Parameter`` records."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn
from torch.nn.parameter import is_lazy

from tiespec.blame import is_users, shown
from tiespec.names import resolve_listed, returning_properties
from tiespec.pipeline import Config, Layer, Location, Parameter
from tiespec.recorder import calls_of, line_of

_OWN_ARGUMENTS = ("tied_weight_attr", "forward_fn")


class _Numbering:
    """Small numbers for objects; keeps them alive, so that no number means two of them."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}

    def __call__(self, key: int, keep: Any) -> int:
        return self._numbers.setdefault(key, (len(self._numbers), keep))[0]


class Describer:
    """Describes layers; numbers tensors across all of them."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        self._identities = _Numbering()
        self._storages = _Numbering()
        self._given = {id(tensor): tensor for tensor in given}
        self._recipes: list[LayerSpec] = []

    def describe(self, index: int, item: Any, module: nn.Module | None, unbuilt: str | None = None) -> Layer:
        """The data of one layer.

        Args:
            index (int): 0-based.
            item (Any): the spec, module or function as it was written.
            module (nn.Module | None): what was built; None for a function and for what does not build.
            unbuilt (str | None): why it does not build.
        """
        if module is None and unbuilt is None:
            name = getattr(item, "__name__", "")
            return Layer(index, name, qualified(item), "function", location=_function_line(item))
        cls = item.typename if isinstance(item, LayerSpec) else type(item)
        layer = Layer(
            index,
            name=getattr(cls, "__name__", ""),
            typename=qualified(cls),
            kind="spec" if isinstance(item, LayerSpec) else "module",
            location=line_of(item) if isinstance(item, LayerSpec) else None,
            parameters=() if module is None else self._parameters(module, isinstance(item, TiedLayerSpec)),
            bases=_bases(cls),
            unbuilt=unbuilt,
            config=_config(item, module),
        )
        if isinstance(item, LayerSpec):
            layer = replace(layer, recipe=self._recipe(item), swallowed=_swallowed(item), calls=calls_of(item))
        return _tied(layer, item, module) if isinstance(item, TiedLayerSpec) else layer

    def _recipe(self, spec: LayerSpec) -> int:
        for number, known in enumerate(self._recipes):
            if _same_recipe(spec, known):
                return number
        if isinstance(spec, TiedLayerSpec):
            self._recipes.append(spec)
            return len(self._recipes) - 1
        return -1

    def _parameters(self, module: nn.Module, tied: bool) -> tuple[Parameter, ...]:
        names: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        parameters = module.named_parameters(remove_duplicate=False)
        buffers = module.named_buffers(remove_duplicate=False)
        for name, tensor in (*parameters, *buffers):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        return tuple(self._parameter(names[key], tensors[key], tied) for key in names)

    def _parameter(self, names: list[str], tensor: torch.Tensor, tied: bool) -> Parameter:
        given = id(tensor) in self._given
        lazy = is_lazy(tensor)
        storage = None if lazy else tensor.untyped_storage()
        start = 0 if lazy else int(tensor.storage_offset()) * tensor.element_size()
        return Parameter(
            path=names[0],
            aliases=tuple(names[1:]),
            shape=None if lazy else tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
            is_buffer=not isinstance(tensor, nn.Parameter),
            identity=self._identities(id(tensor), tensor),
            storage=self._storages(id(tensor) if storage is None else storage._cdata, storage),
            span=(start, start + _extent(tensor)),
            stride=() if lazy else tuple(int(step) * tensor.element_size() for step in tensor.stride()),
            nbytes=0 if lazy else tensor.numel() * tensor.element_size(),
            contiguous=lazy or tensor.is_contiguous(),
            given=given,
            digest=_digest(tensor) if given and tied and not lazy else None,
        )


def _digest(tensor: torch.Tensor) -> str | None:
    """Of the values; None on meta, where there are none."""
    if tensor.is_meta:
        return None
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last element of a strided tensor."""
    if is_lazy(tensor) or tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _tied(layer: Layer, spec: TiedLayerSpec, module: nn.Module | None) -> Layer:
    listed_as, listed = resolve_listed(module, spec.tied_weight_attr) if module is not None else (None, ())
    return replace(
        layer,
        key=str(spec.key),
        key_error=_key_error(spec.key),
        forward_fn=None if spec.forward_fn is None else qualified(spec.forward_fn),
        listed=listed,
        listed_as=listed_as,
        properties=() if module is None else returning_properties(module),
    )


def _key_error(key: Any) -> str | None:
    """What ``nn.ModuleDict``, in which DeepSpeed keeps the tied modules, says to a key; None when it takes it."""
    try:
        nn.ModuleDict()[key] = nn.Identity()
    except (KeyError, TypeError, AttributeError) as error:
        return str(error.args[0]) if error.args else type(error).__name__
    return None


def _same_recipe(spec: LayerSpec, other: LayerSpec) -> bool:
    return (
        spec.typename is other.typename
        and len(spec.module_args) == len(other.module_args)
        and spec.module_kwargs.keys() == other.module_kwargs.keys()
        and all(_same(a, b) for a, b in zip(spec.module_args, other.module_args, strict=True))
        and all(_same(value, other.module_kwargs[name]) for name, value in spec.module_kwargs.items())
    )


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors have no single answer
        return False


def misfit(spec: LayerSpec) -> str | None:
    """What Python says of the arguments of a spec, where its class does not take them."""
    try:
        signature = inspect.signature(spec.typename)
    except (TypeError, ValueError):  # some C functions have none: the call itself will tell
        return None
    try:
        signature.bind(*spec.module_args, **spec.module_kwargs)
    except TypeError as error:
        return str(error)
    return None


def _swallowed(spec: LayerSpec) -> tuple[str, ...]:
    near = [name for name in spec.module_kwargs if difflib.get_close_matches(name, _OWN_ARGUMENTS, cutoff=0.8)]
    try:
        known = inspect.signature(spec.typename).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(name for name in near if name not in known)


def _bases(cls: Any) -> tuple[str, ...]:
    mro = getattr(cls, "__mro__", ())
    return tuple(qualified(base) for base in mro if issubclass(base, nn.Module) and base is not nn.Module)


def _config(item: Any, module: nn.Module | None) -> Config | None:
    arguments = (*item.module_args, *item.module_kwargs.values()) if isinstance(item, LayerSpec) else ()
    modules = () if module is None else module.modules()
    for candidate in (*arguments, *(getattr(m, "config", None) for m in modules)):
        ties = getattr(candidate, "tie_word_embeddings", None)
        if isinstance(ties, bool):
            vocabulary = getattr(candidate, "vocab_size", None)
            return Config(type(candidate).__name__, ties, vocabulary if isinstance(vocabulary, int) else None)
    return None


def qualified(thing: Any) -> str:
    """``module.qualname`` of a class or function; of the inner function for a partial."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    if not hasattr(thing, "__qualname__"):
        thing = type(thing)
    return f"{thing.__module__}.{thing.__qualname__}"


def _function_line(function: Any) -> Location | None:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    return Location(shown(code.co_filename), code.co_firstlineno)
