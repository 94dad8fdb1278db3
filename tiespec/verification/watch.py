"""Which collective a rank sits in: written down when it is entered, taken back when it returns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "irecv", "isend", "new_group", "recv", "reduce", "reduce_scatter", "scatter", "send",
)  # fmt: skip
WIDTH = 1024
"""Bytes that are overwritten at each collective."""


def watch(file: str) -> None:
    """From now on, ``file`` says which collective this process is in: JSON, or blanks when it is in none."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def say(text: str) -> None:
        os.pwrite(descriptor, text.encode()[:WIDTH].ljust(WIDTH), 0)

    for name in COLLECTIVES:
        function = getattr(dist, name, None)
        if function is not None:
            setattr(dist, name, _watched(name, function, say))


def sits_in(file: str) -> dict[str, Any] | None:
    """The collective a process is in, as ``watch`` has written it; None when it is in none."""
    try:
        with open(file) as text:
            return json.loads(text.read().strip() or "null")  # type: ignore[no-any-return]
    except (OSError, json.JSONDecodeError):
        return None


def _watched(name: str, function: Callable[..., Any], say: Callable[[str], None]) -> Callable[..., Any]:
    def collective(*args: Any, **kwargs: Any) -> Any:
        say(json.dumps({"operation": name, **_where(sys._getframe(1), _tensor(args, kwargs))}))
        try:
            return function(*args, **kwargs)
        finally:
            say("")

    return collective


def _tensor(args: Any, kwargs: Any) -> torch.Tensor | None:
    return next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), None)


def _where(frame: Any, tensor: torch.Tensor | None) -> dict[str, Any]:
    """The method of the engine or the pipeline that asked for it, and the parameter it is about."""
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, (PipelineModule, PipelineEngine)):
            pipeline = owner.module if isinstance(owner, PipelineEngine) else owner
            named = {} if tensor is None else _named(pipeline, tensor)
            return {"asked_by": frame.f_code.co_name, "stage": getattr(pipeline, "stage_id", None), **named}
        frame = frame.f_back
    return {}


def _named(pipeline: Any, tensor: torch.Tensor) -> dict[str, Any]:
    """Key, layer and path of the parameter whose value or gradient a tensor is."""
    for key, module in getattr(pipeline, "tied_modules", {}).items():
        for path, parameter in module.named_parameters():
            if any(_same_memory(tensor, t) for t in (parameter, parameter.grad, getattr(parameter, "_hp_grad", None))):
                specs = enumerate(pipeline._layer_specs[pipeline._local_start : pipeline._local_stop], pipeline._local_start)
                layer = next((i for i, spec in specs if getattr(spec, "key", None) == key), None)
                return {"key": str(key), "layer": layer, "path": path}
    return {}


def _same_memory(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    if tensor is other or other is None:
        return other is not None
    if is_lazy(tensor) or is_lazy(other):  # it has no memory yet
        return False
    strided = tensor.layout is other.layout is torch.strided  # a sparse tensor has no data pointer
    return strided and tensor.data_ptr() == other.data_ptr()
