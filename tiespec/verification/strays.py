"""Parameters that the training reaches and that belong to no layer of the pipeline: seen in the process, not in its source."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

State = tuple[int, tuple[int, int] | None]
"""How often a Parameter was written to; which object its gradient is and how often that was."""


def outside(pipeline: nn.Module) -> list[tuple[nn.Parameter, State]]:
    """The trainable Parameters of this process that the pipeline does not list, and their state, before training."""
    own = {id(p) for p in pipeline.parameters()}
    return [(p, _state(p)) for p in _alive(nn.Parameter) if p.requires_grad and id(p) not in own and not is_lazy(p)]


def untrained(before: list[tuple[nn.Parameter, State]]) -> list[tuple[str, torch.Tensor]]:
    """Those of them that were given a gradient in training, that no optimizer holds, and that nobody has written to.

    Returns:
        list[tuple[str, torch.Tensor]]: the name (class of its module, and its name there) and the values of each.
    """
    owned = {id(p) for o in _alive(torch.optim.Optimizer) for group in o.param_groups for p in group["params"]}
    return [
        (_name(p), p.detach().cpu())
        for p, (written, gradient) in before
        if id(p) not in owned and p._version == written and p.grad is not None and _state(p)[1] != gradient
    ]


def _state(parameter: nn.Parameter) -> State:
    gradient = parameter.grad
    return parameter._version, None if gradient is None else (id(gradient), gradient._version)


def _alive(kind: type) -> Iterator[Any]:
    """The objects of a class in this process. ``isinstance`` would run the code of proxies."""
    return (found for found in gc.get_objects() if issubclass(type(found), kind))


def _name(parameter: nn.Parameter) -> str:
    for module in _alive(nn.Module):
        for name, held in module.__dict__.get("_parameters", {}).items():
            if held is parameter:
                return f"{type(module).__name__}.{name}"
    return type(parameter).__name__
