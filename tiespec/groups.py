"""Which optimizer settings the parameters of the layers get from the training script's own function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from tiespec.capture import LiveLayer
from tiespec.errors import TargetError
from tiespec.guest import guest
from tiespec.pipeline import Pipeline

Function = Callable[[nn.Module], Any]
"""From a module to an iterable of parameters, or of dicts with ``params`` and settings."""
Groups = dict[tuple[int, str], str]
"""(layer, path) -> settings, as text; a parameter in no group is absent."""


def group_settings(pipeline: Pipeline, live: Sequence[LiveLayer], function: Function) -> Groups:
    """Call the function with a module for each tied layer, named as PipelineModule names its parts.

    Args:
        pipeline (Pipeline): the layers.
        live (Sequence[LiveLayer]): the same, to be passed.
        function (Function): the training script's.

    Raises:
        TargetError: the function failed, or returned something else.
    """
    settings: Groups = {}
    for tie in pipeline.ties:
        for index in tie.layers:
            module = live[index].module
            if module is not None:
                found = settings_of(as_stage((index, tie.key, module)), function)
                settings.update({(index, path): _said(found[id(p)]) for path, p in module.named_parameters() if id(p) in found})
    return settings


def group_counts(
    pipeline: Pipeline, live: Sequence[LiveLayer], function: Function, cuts: Iterable[Sequence[int]]
) -> dict[int, tuple[int, ...] | str]:
    """Number of stages -> how many groups each stage trains, or what the function raises.

    DeepSpeed drops groups without parameters (0.19.8, ``_configure_optimizer``); torch makes one group of plain parameters.

    Args:
        pipeline (Pipeline): the layers.
        live (Sequence[LiveLayer]): the same, to be passed.
        function (Function): the training script's.
        cuts (Iterable[Sequence[int]]): the first layer of every stage, and the number of layers at the end.
    """
    found: dict[int, tuple[int, ...] | str] = {}
    for parts in cuts:
        stages = [range(first, end) for first, end in itertools.pairwise(parts)]
        try:
            found[len(stages)] = tuple(_count(_groups(_stage(pipeline, live, held), function)) for held in stages)
        except TargetError as error:
            found[len(stages)] = error.message
    return found


def _stage(pipeline: Pipeline, live: Sequence[LiveLayer], held: Iterable[int]) -> nn.Module:
    """What DeepSpeed builds of these layers: one module for each key."""
    layers = [(i, pipeline.layers[i].key, module) for i in held if (module := live[i].module) is not None]
    firsts = {key: i for i, key, _ in reversed(layers) if key is not None}
    return as_stage(*(layer for layer in layers if layer[1] is None or firsts[layer[1]] == layer[0]))


def _groups(module: nn.Module, function: Function) -> list[Any]:
    with guest("calling the --param-groups function"):
        groups = list(function(module))
        made = [{**g, "params": list(g["params"])} if isinstance(g, dict) and _is_many(g.get("params")) else g for g in groups]
    if any(not isinstance(g, nn.Parameter) and not (isinstance(g, dict) and "params" in g) for g in made):
        raise TargetError("the --param-groups function returned no parameter groups", "return a list of dicts with 'params'")
    return made


def _is_many(parameters: Any) -> bool:
    return isinstance(parameters, Iterable) and not isinstance(parameters, torch.Tensor)


def _count(groups: Sequence[Any]) -> int:
    if not any(isinstance(group, dict) for group in groups):
        return min(1, len(groups))
    return sum(not _is_many(group["params"]) or len(group["params"]) > 0 for group in groups if isinstance(group, dict))


def _said(options: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in sorted(options.items())) or "the defaults"


def as_stage(*layers: tuple[int, str | None, nn.Module]) -> nn.Module:
    """A module that has these layers (index, key, module), under the names that PipelineModule gives them.

    The second one of a key has the name of an ordinary layer.
    """
    stage, tied = nn.Module(), nn.ModuleDict()
    for index, key, module in layers:
        if key is None or key in tied._modules:
            stage.add_module(str(index), module)
        else:
            tied._modules[key] = module  # also a key that ModuleDict refuses: that is another rule's matter
    stage.tied_modules = tied
    return stage


def settings_of(module: nn.Module, function: Function) -> dict[int, dict[str, Any]]:
    """``id`` of a Parameter -> its optimizer settings; one that is in no group is absent.

    Raises:
        TargetError: the function failed, or returned something else.
    """
    found: dict[int, dict[str, Any]] = {}
    for group in _groups(module, function):
        if isinstance(group, nn.Parameter):
            group = {"params": [group]}
        if not isinstance(group, dict) or "params" not in group:
            raise TargetError(
                "the --param-groups function returned no parameter groups", "return a list of dicts with 'params'"
            )
        options = {str(k): v for k, v in group.items() if k not in ("params", "name")}
        parameters = [group["params"]] if isinstance(group["params"], nn.Parameter) else group["params"]
        found.update({id(p): options for p in parameters})
    return found
