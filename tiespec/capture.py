"""Python object -> Pipeline. Every layer is built, by itself, so that no two stages share what a real run does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.nn.parameter import is_lazy

from tiespec.blame import is_users, shown
from tiespec.errors import TargetError
from tiespec.guest import Progress, guest
from tiespec.names import resolve_listed, returning_properties
from tiespec.pipeline import Layer, Location, Parameter, Pipeline
from tiespec.recorder import Record, line_of, record_of
from tiespec.target import Device, on_device

LAYERS_HELP = "a list may hold modules, LayerSpec, TiedLayerSpec and functions"


@dataclass
class LiveLayer:
    """A layer that can be run.

    Args:
        module (nn.Module | None): None for a function between layers.
        function (Callable | None): the function, or the ``forward_fn`` of a TiedLayerSpec.
        paths (dict[str, torch.Tensor]): canonical path -> parameter, trainable or not.
    """

    module: nn.Module | None
    function: Callable[..., Any] | None
    paths: dict[str, torch.Tensor]

    def __call__(self, inputs: Any) -> Any:
        """Run it as DeepSpeed's pipeline would: ``forward_fn(module, inputs)``, ``module(inputs)`` or ``function(inputs)``."""
        if self.function is None:
            assert self.module is not None
            return self.module(inputs)
        return self.function(inputs) if self.module is None else self.function(self.module, inputs)


@dataclass
class Captured:
    """A Pipeline and what is needed to run it.

    Args:
        pipeline (Pipeline): the data.
        live (list[LiveLayer]): one per layer.
        loss_fn (Callable | None): from the PipelineModule.
    """

    pipeline: Pipeline
    live: list[LiveLayer]
    loss_fn: Callable[..., Any] | None


class _Numbering:
    """Small numbers for objects; keeps them alive, so that no number means two of them."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}

    def __call__(self, key: int, keep: Any) -> int:
        return self._numbers.setdefault(key, (len(self._numbers), keep))[0]


def capture(
    value: Any,
    target: str,
    device: Device = "meta",
    record: Record | None = None,
    notes: Iterable[str] = (),
    progress: Progress = lambda phase: None,
) -> Captured:
    """Build every layer of a list of layers, a PipelineModule or a plain module, and describe it.

    Args:
        value (Any): what the TARGET is.
        target (str): the TARGET's text.
        device (Device): where specs are built; a constructor that refuses meta is built on the CPU, with a note.
        record (Record | None): the arguments of a PipelineModule, where they were recorded.
        notes (Iterable[str]): notes from loading.
        progress (Progress): called with each phase.

    Raises:
        TargetError: a layer does not build, or is none.
    """
    record = record or (record_of(value) if isinstance(value, nn.Module) else None)
    items, plain = _items(value, record)
    builder = _Builder(device, list(notes))
    layers, live = [], []
    for index, item in enumerate(items):
        progress(f"building layer {index} of {len(items)}")
        module = builder.module(index, item)
        with guest(f"reading layer {index}"):
            layers.append(builder.describe(index, item, module))
        live.append(_live(item, module))
    arguments = _arguments(value, record)
    pipeline = Pipeline(target, tuple(layers), plain, arguments.num_stages, arguments.partition, tuple(builder.notes))
    return Captured(pipeline, live, arguments.loss_fn)


def _items(value: Any, record: Record | None) -> tuple[list[Any], bool]:
    """The layers, and whether it is a plain module instead."""
    if record is not None:
        return list(record.layers), False
    if isinstance(value, PipelineModule):
        return list(value._layer_specs), False
    if isinstance(value, (nn.Sequential, nn.ModuleList)):
        return list(value), False
    if isinstance(value, nn.Module):
        return [value], True
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict)):
        items = list(value)
        if items:
            return items, False
        raise TargetError("the list of layers is empty", LAYERS_HELP)
    raise TargetError(f"got a {type(value).__name__}, which is no module and no list of layers", LAYERS_HELP)


@dataclass(frozen=True)
class _Arguments:
    num_stages: int | None
    partition: str
    loss_fn: Callable[..., Any] | None


def _arguments(value: Any, record: Record | None) -> _Arguments:
    if record is not None:
        given = record.arguments
        topology = given.get("topology")
        stages = topology.get_dim("pipe") if topology is not None else given.get("num_stages")
        return _Arguments(stages, str(given.get("partition_method", "parameters")), given.get("loss_fn"))
    if isinstance(value, PipelineModule):
        return _Arguments(value.num_stages, "parameters", value.loss_fn)
    return _Arguments(None, "parameters", None)


def _live(item: Any, module: nn.Module | None) -> LiveLayer:
    function = getattr(item, "forward_fn", None) if isinstance(item, TiedLayerSpec) else None
    if module is None:
        function = item
    return LiveLayer(module, function, dict(module.named_parameters()) if module is not None else {})


class _Builder:
    """Builds layers and describes them; numbers tensors across all of them."""

    def __init__(self, device: Device, notes: list[str]) -> None:
        self.device = device
        self.notes = notes
        self._identities = _Numbering()
        self._storages = _Numbering()

    def module(self, index: int, item: Any) -> nn.Module | None:
        """The module of one layer; None for a function."""
        if isinstance(item, LayerSpec):
            return self._built(index, item)
        if isinstance(item, nn.Module):
            return item
        if callable(item) and not isinstance(item, type):
            return None
        raise TargetError(f"layer {index} is a {type(item).__name__}: {item!r:.60}", LAYERS_HELP)

    def _built(self, index: int, spec: LayerSpec) -> nn.Module:
        what, line = f"building layer {index} ({_qualified(spec.typename)})", line_of(spec)
        try:
            with guest(what, line), on_device(self.device):
                module = spec.build()
        except TargetError as error:
            if self.device == "cpu" or not isinstance(error.__cause__, Exception):
                raise
            with guest(what, line), on_device("cpu"):
                module = spec.build()
            self.notes.append(f"layer {index} does not build on the meta device, so it was built on the CPU ({error})")
        if not isinstance(module, nn.Module):
            raise TargetError(f"layer {index} builds a {type(module).__name__}, not a module", LAYERS_HELP)
        return module

    def describe(self, index: int, item: Any, module: nn.Module | None) -> Layer:
        """The data of one layer."""
        if module is None:
            name = getattr(item, "__name__", "")
            return Layer(index, name, _qualified(item), "function", location=_function_line(item))
        typename = item.typename if isinstance(item, LayerSpec) else type(item)
        layer = Layer(
            index,
            name=getattr(typename, "__name__", ""),
            typename=_qualified(typename),
            kind="spec" if isinstance(item, LayerSpec) else "module",
            location=line_of(item) if isinstance(item, LayerSpec) else None,
            parameters=self._parameters(module),
        )
        return self._tied(layer, item, module) if isinstance(item, TiedLayerSpec) else layer

    def _tied(self, layer: Layer, spec: TiedLayerSpec, module: nn.Module) -> Layer:
        listed_as, listed = resolve_listed(module, spec.tied_weight_attr)
        return replace(
            layer,
            key=str(spec.key),
            forward_fn=None if spec.forward_fn is None else _qualified(spec.forward_fn),
            listed=listed,
            listed_as=listed_as,
            properties=returning_properties(module),
        )

    def _parameters(self, module: nn.Module) -> tuple[Parameter, ...]:
        names: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        parameters = module.named_parameters(remove_duplicate=False)
        buffers = module.named_buffers(remove_duplicate=False)
        for name, tensor in (*parameters, *buffers):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        return tuple(self._parameter(names[key], tensors[key]) for key in names)

    def _parameter(self, names: list[str], tensor: torch.Tensor) -> Parameter:
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
            nbytes=0 if lazy else tensor.numel() * tensor.element_size(),
        )


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last element of a strided tensor."""
    if is_lazy(tensor) or tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _qualified(thing: Any) -> str:
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
