"""What one process trains with the same layers and truly shared Parameters."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from tests.distributed import Run
from tiespec.recorder import record_of, recording

LEARNING_RATE = 0.1


def loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


def trained_by_one(
    file: Path, build: str, seen: Run, steps: int, arguments: dict[str, Any] | None = None
) -> tuple[list[float], dict[int, dict[str, torch.Tensor]]]:
    """Losses and final tensors by layer, from the values that ``seen`` began with; plain SGD on the same batch."""
    module = loaded(file)
    made = getattr(module, build)
    with recording():
        value = made(**(arguments or {})) if callable(made) and not isinstance(made, nn.Module) else made
        record = record_of(value) if isinstance(value, PipelineModule) else None
    items = list(record.layers if record else value)
    loss_fn = record.arguments["loss_fn"] if record else module.loss_fn
    layers = _built(items)
    start = {layer: tensors for (_, layer), tensors in sorted(seen.built.items(), reverse=True)}
    with torch.no_grad():
        for index, layer in enumerate(layers):
            if isinstance(layer[0], nn.Module):
                layer[0].load_state_dict(start[index], strict=False)  # a second name of a Parameter is not among them
    parameters = {
        id(p): p for layer, _ in layers if isinstance(layer, nn.Module) for p in layer.parameters() if p.requires_grad
    }
    optimizer = torch.optim.SGD(parameters.values(), lr=LEARNING_RATE)
    losses = [_step(layers, module.example_inputs(), loss_fn, optimizer) for _ in range(steps)]
    held = {i: dict(y.named_parameters()) for i, (y, _) in enumerate(layers) if isinstance(y, nn.Module)}
    return losses, {i: {n: p.detach().clone() for n, p in named.items()} for i, named in held.items()}


Layers = list[tuple[Any, Any]]


def _step(layers: Layers, batch: Any, loss_fn: Any, optimizer: Any) -> float:
    outputs, labels = batch
    for layer, forward_fn in layers:
        outputs = layer(outputs) if forward_fn is None else forward_fn(layer, outputs)
    loss = loss_fn(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _built(items: list[Any]) -> Layers:
    shared: dict[Any, tuple[nn.Module, TiedLayerSpec]] = {}
    return [(_layer(item, shared), getattr(item, "forward_fn", None)) for item in items]


def _layer(item: Any, shared: dict[Any, tuple[nn.Module, TiedLayerSpec]]) -> Any:
    if not isinstance(item, LayerSpec):
        return item
    if not isinstance(item, TiedLayerSpec):
        return item.build()
    if item.key not in shared:
        shared[item.key] = (item.build(), item)
        return shared[item.key][0]
    owner, spec = shared[item.key]
    if item.typename is spec.typename:
        return owner
    other = item.build()
    for mine, theirs in zip(item.tied_weight_attr, spec.tied_weight_attr, strict=True):
        _put(other, mine, _get(owner, theirs))
    return other


def _get(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    old = _get(module, name)
    for part in module.modules():
        for key, held in list(part._parameters.items()):
            if held is old:
                part._parameters[key] = parameter
