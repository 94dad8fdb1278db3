"""Which optimizer settings the parameters of tied layers get from the training script's own function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from tiespec.capture import LiveLayer
from tiespec.errors import TargetError
from tiespec.guest import guest
from tiespec.pipeline import Pipeline

Groups = dict[tuple[int, str], str]
"""(layer, path) -> settings, as text; a parameter in no group is absent."""


def group_settings(pipeline: Pipeline, live: Sequence[LiveLayer], function: Callable[[nn.Module], Any]) -> Groups:
    """Call the function with a module for each tied layer, named as PipelineModule names its parts.

    Args:
        pipeline (Pipeline): the layers.
        live (Sequence[LiveLayer]): the same, to be passed.
        function (Callable): module -> iterable of parameters, or of dicts with ``params`` and settings.

    Raises:
        TargetError: the function failed, or returned something else.
    """
    settings: Groups = {}
    for tie in pipeline.ties:
        for index in tie.layers:
            module = live[index].module
            if module is not None:
                found = _of_module(_as_stage(tie.key, module), function)
                settings.update({(index, path): found[id(p)] for path, p in module.named_parameters() if id(p) in found})
    return settings


def _as_stage(key: str, module: nn.Module) -> nn.Module:
    stage = nn.Module()
    stage.tied_modules = nn.ModuleDict()
    stage.tied_modules._modules[key] = module  # also a key that ModuleDict refuses: that is another rule's matter
    return stage


def _of_module(module: nn.Module, function: Callable[[nn.Module], Any]) -> dict[int, str]:
    with guest("calling the --param-groups function"):
        groups = list(function(module))
    found: dict[int, str] = {}
    for group in groups:
        if isinstance(group, nn.Parameter):
            group = {"params": [group]}
        if not isinstance(group, dict) or "params" not in group:
            raise TargetError(
                "the --param-groups function returned no parameter groups", "return a list of dicts with 'params'"
            )
        options = ", ".join(f"{k}={v!r}" for k, v in sorted(group.items()) if k not in ("params", "name"))
        parameters = [group["params"]] if isinstance(group["params"], nn.Parameter) else group["params"]
        found.update({id(p): options or "the defaults" for p in parameters})
    return found
