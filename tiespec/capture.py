"""Python object -> Pipeline. Every layer is built, by itself, so that no two stages share what a real run does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from tiespec.declared import declaring, lost_declarations
from tiespec.describe import Describer, misfit, qualified
from tiespec.elsewhere import Device, on_device
from tiespec.errors import TargetError
from tiespec.guest import Progress, guest
from tiespec.pipeline import Pipeline
from tiespec.recorder import Record, line_of, record_of

LAYERS_HELP = "a list may hold modules, LayerSpec, TiedLayerSpec and functions"


@dataclass
class LiveLayer:
    """A layer that can be run.

    Args:
        module (nn.Module | None): None for a function between layers, and with no function for what does not build.
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


def capture(
    value: Any,
    target: str,
    device: Device = "meta",
    record: Record | None = None,
    notes: Iterable[str] = (),
    progress: Progress = lambda phase: None,
    models: Sequence[nn.Module] = (),
) -> Captured:
    """Build every layer of a list of layers, a PipelineModule or a plain module, and describe it.

    Args:
        value (Any): what the TARGET is.
        target (str): the TARGET's text.
        device (Device): where specs are built; a constructor that refuses meta is built on the CPU, with a note.
        record (Record | None): the arguments of a PipelineModule, where they were recorded.
        notes (Iterable[str]): notes from loading.
        progress (Progress): called with each phase.
        models (Sequence[nn.Module]): whole models that declare ties, beside those in the layers.

    Raises:
        TargetError: a layer does not build, or is none. One whose arguments do not fit is captured as unbuilt.
    """
    record = record or (record_of(value) if isinstance(value, nn.Module) else None)
    items, plain = _items(value, record)
    builder, describer = _Builder(device, list(notes)), Describer(list(_given(items)))
    layers, live = [], []
    for index, item in enumerate(items):
        progress(f"building layer {index} of {len(items)}")
        unbuilt = misfit(item) if isinstance(item, LayerSpec) else None
        module = None if unbuilt else builder.module(index, item)
        with guest(f"reading layer {index}"):
            layers.append(describer.describe(index, item, module, unbuilt))
        live.append(LiveLayer(None, None, {}) if unbuilt else _live(item, module))
    arguments, modules = _arguments(value, record), [layer.module for layer in live]
    inner = (m for module in modules if module is not None for m in module.modules())
    with guest("reading declared ties"):
        declared = lost_declarations(declaring((*models, *inner)), modules)
    pipeline = Pipeline(
        target, tuple(layers), plain, arguments.num_stages, arguments.partition, tuple(builder.notes), declared
    )  # fmt: skip
    return Captured(pipeline, live, arguments.loss_fn)


def _given(items: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors that exist before any spec is built: of modules, and of those in the arguments of specs."""
    for item in items:
        spec = isinstance(item, LayerSpec)
        for part in (*item.module_args, *item.module_kwargs.values()) if spec else (item,):
            if isinstance(part, nn.Module):
                yield from (*part.parameters(), *part.buffers())
            elif isinstance(part, torch.Tensor):
                yield part


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
    """Builds layers, on the CPU where they refuse meta."""

    def __init__(self, device: Device, notes: list[str]) -> None:
        self.device = device
        self.notes = notes

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
        what, line = f"building layer {index} ({qualified(spec.typename)})", line_of(spec)
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
