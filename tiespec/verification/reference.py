"""What one process trains with the same layers, each as it is written, and with truly shared Parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from tiespec.groups import as_stage, settings_of
from tiespec.recorder import record_of, recording
from tiespec.runtime.copies import replace_parameter
from tiespec.runtime.handshake import read
from tiespec.state import seed_all
from tiespec.target import load_for_real, load_function
from tiespec.verification.rank import cast, loss_of, without_dropout
from tiespec.verification.task import LEARNING_RATE, Place, Plan, Task, precision_of, read_plan

Tensors = dict[int, dict[str, torch.Tensor]]


@dataclass
class _Layer:
    module: nn.Module | None
    key: str | None
    function: Callable[..., Any] | None

    def __call__(self, inputs: Any) -> Any:
        if self.function is None:
            assert self.module is not None
            return self.module(inputs)
        return self.function(inputs) if self.module is None else self.function(self.module, inputs)


def run_reference(task: Task) -> None:
    """Train from the values that the ranks began with; write ``reference.pt`` and ``reference.json`` into the folder.

    The JSON has ``losses``, and ``shared``: sets of (layer, path) that are one Parameter here.

    Raises:
        TargetError: the user's code failed.
    """
    plan, batch = read_plan(task.folder), torch.load(Path(task.folder, "batch.pt"), weights_only=True)
    seed_all(100)
    with recording(), without_dropout():
        layers, loss_fn = _layers(task, plan)
        shared = _share(layers, plan)
        _begin(layers, task)
        losses = _train(layers, batch, loss_fn, task)
    named = {i: dict(layer.module.named_parameters()) for i, layer in enumerate(layers) if layer.module is not None}
    torch.save(
        {i: {n: p.detach().clone() for n, p in found.items()} for i, found in named.items()}, Path(task.folder, "reference.pt")
    )
    Path(task.folder, "reference.json").write_text(json.dumps({"losses": losses, "shared": shared}))


def _layers(task: Task, plan: Plan) -> tuple[list[_Layer], Callable[..., Any]]:
    value, namespace = load_for_real(task.target, task.setup)
    record = record_of(value) if isinstance(value, PipelineModule) else None
    loss_fn = record.arguments.get("loss_fn") if record else getattr(namespace, "loss_fn", None)
    return [_layer(item) for item in (record.layers if record else value)], loss_of(plan, loss_fn)


def _layer(item: Any) -> _Layer:
    if isinstance(item, LayerSpec):
        tied = isinstance(item, TiedLayerSpec)
        return _Layer(item.build(), str(item.key) if tied else None, item.forward_fn if tied else None)
    return _Layer(item, None, None) if isinstance(item, nn.Module) else _Layer(None, None, item)


def _share(layers: Sequence[_Layer], plan: Plan) -> list[list[Place]]:
    """Make one Parameter of every row of the plan; all sets of places that are one then."""
    for row in (*plan.rows, *plan.declared):
        (first, path), *others = row
        kept = read(layers[first].module, path)
        for place, other in others:
            old = read(layers[place].module, other)
            for module in (layer.module for layer in layers if layer.module is not None):
                replace_parameter(module, old, kept)  # also where an earlier row has put it
    places: dict[int, list[Place]] = {}
    for index, layer in enumerate(layers):
        for path, parameter in layer.module.named_parameters() if layer.module is not None else ():
            places.setdefault(id(parameter), []).append((index, path))
    return [found for found in places.values() if len({layer for layer, _ in found}) > 1]


def _stages(task: Task) -> list[list[int]]:
    """The layers that the ranks had, by stage."""
    files = sorted(Path(task.folder).glob("built*.pt"), key=lambda f: int(f.stem.removeprefix("built")))
    return [list(held) for held in dict.fromkeys(tuple(sorted(torch.load(f, weights_only=True))) for f in files)]


@torch.no_grad()
def _begin(layers: Sequence[_Layer], task: Task) -> None:
    """The values that the ranks began with; of copies, those of the first stage."""
    built: Tensors = {}
    for file in sorted(Path(task.folder).glob("built*.pt"), key=lambda f: -int(f.stem.removeprefix("built"))):
        built |= torch.load(file, weights_only=True)
    for index in sorted(built, reverse=True):
        module = layers[index].module
        for path, tensor in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items() if module else ():
            if path in built[index] and built[index][path].shape == tensor.shape:
                tensor.copy_(built[index][path])


def _train(layers: Sequence[_Layer], batch: Any, loss_fn: Callable[..., Any], task: Task) -> list[float]:
    """SGD; in a low precision with fp32 copies of the weights, as DeepSpeed keeps them."""
    modules = [layer.module for layer in layers if layer.module is not None]
    dtype = precision_of(task)
    for module in modules:
        module.to(dtype).train()
    parameters = list({id(p): p for module in modules for p in module.parameters() if p.requires_grad}.values())
    masters = [nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = _optimizer(layers, parameters, masters, task)
    inputs, losses = cast(batch["inputs"], dtype), []
    for _ in range(task.steps):
        outputs = inputs
        for layer in layers:
            outputs = layer(outputs)
        loss = loss_fn(outputs, batch["labels"])
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        _update(parameters, masters, optimizer)
        losses.append(float(loss.detach()))
    return losses


def _optimizer(
    layers: Sequence[_Layer], parameters: Sequence[nn.Parameter], masters: Sequence[nn.Parameter], task: Task
) -> torch.optim.SGD:
    """With the settings of the user's groups; those of a shared Parameter are what it gets in its first stage."""
    settings: dict[int, dict[str, Any]] = {id(p): {} for p in parameters}
    if task.param_groups is not None:
        function = load_function(task.param_groups, "--param-groups")
        settings = {}
        for held in reversed(_stages(task)):
            modules = [(i, layers[i].key, module) for i in held if (module := layers[i].module) is not None]
            settings |= settings_of(as_stage(*modules), function)
    pairs = zip(parameters, masters, strict=True)
    groups = [{"params": [master], **settings[id(p)]} for p, master in pairs if id(p) in settings]
    return torch.optim.SGD(groups or [{"params": []}], lr=LEARNING_RATE)


@torch.no_grad()
def _update(parameters: Sequence[nn.Parameter], masters: Sequence[nn.Parameter], optimizer: torch.optim.SGD) -> None:
    for parameter, master in zip(parameters, masters, strict=True):
        master.grad = None if parameter.grad is None else parameter.grad.to_dense().float()
    optimizer.step()
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.copy_(master)
