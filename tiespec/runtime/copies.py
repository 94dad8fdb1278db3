"""The copies of a tie: which tensors a rank holds of it, in the order in which all ranks hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tiespec.errors import TieMismatchError
from tiespec.runtime.handshake import local_layers, read, same_layout

CHUNK = 1 << 22
"""Elements that a digest looks at at once."""
SMALL = 1 << 20
"""Elements below which gradients are reduced together: the time of such a reduction is its start."""


@dataclass
class Copy:
    """What one rank holds of a tie: tensors in the order in which all ranks hold them.

    ``everywhere`` has the names of all copies, as the ``named_parameters()`` of their own stage's pipeline give them.
    """

    key: str
    stages: list[int]
    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    group: Any = None
    ranks: list[int] = field(default_factory=list)
    everywhere: set[str] = field(default_factory=set)

    def trainable(self) -> list[torch.Tensor]:
        """The parameters whose gradients are reduced."""
        return [t for t in self.tensors if t.requires_grad]


def replace_parameter(module: nn.Module, old: Any, new: Any) -> None:
    """Put another Parameter in place of one, under all names that it has in a module."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is old:
                part._parameters[name] = new


def share_buffers(module: nn.Module, other: nn.Module) -> None:
    """Buffers of the same name and shape are one, as they are where both layers are one module."""
    for path, part in module.named_modules():
        for name, buffer in list(part._buffers.items()):
            theirs = dict(other.named_buffers()).get(f"{path}.{name}" if path else name)
            if buffer is not None and theirs is not None and theirs.shape == buffer.shape:
                part._buffers[name] = theirs


def copies_of(here: Any, everyone: Sequence[Mapping[str, Any]]) -> list[Copy]:
    """Every tie of the pipeline over more than one stage, sorted by key; with the tensors where this rank holds it."""
    copies = []
    for key in sorted({key for told in everyone for key in told["held"]}):
        tellers = [told for told in everyone if key in told["held"]]
        held = [told["held"][key] for told in tellers]
        names = [_names(held, i) for i in range(len(held))]
        if len(tellers) < 2 or not names[0]:
            continue
        copy = Copy(key, sorted(told["stage"] for told in tellers))
        copy.everywhere = {f"tied_modules.{key}.{name}" for listed in names for name in listed}
        if here.stage_id in copy.stages:
            named = _tied_tensors(here, held, names[copy.stages.index(here.stage_id)], key)
            copy.names, copy.tensors = [name for name, _ in named], [tensor for _, tensor in named]
        copies.append(copy)
    return copies + parameter_copies(here)


def _names(held: Sequence[Mapping[str, Any]], position: int) -> list[str]:
    """All parameters of the module where it is the same on every stage; else the listed ones, each once."""
    if same_layout(held):
        return [name for name, _ in held[position]["layout"]]
    return list(dict.fromkeys(held[position]["listed"]))


Named = list[tuple[str, torch.Tensor]]


def _tied_tensors(here: Any, held: Sequence[Mapping[str, Any]], names: Sequence[str], key: str) -> Named:
    """The tied parameters, and the buffers that all stages have alike where the whole module is tied."""
    module = next(m for name, m in here.tied_modules.items() if str(name) == key)
    parameters = dict(module.named_parameters())
    buffers = [
        (n, b) for n, b in module.named_buffers() if all(other["buffers"].get(n) == held[0]["buffers"].get(n) for other in held)
    ]
    return [(name, parameters[name]) for name in names] + (buffers if same_layout(held) else [])


def parameter_copies(here: Any) -> list[Copy]:
    """The ties by parameter: between ordinary layers, which DeepSpeed does not know of."""
    copies = []
    for key, by_layer in here._parameter_ties:
        copy = Copy(key, sorted({here.stage_owner(layer) for layer in by_layer}))
        copy.everywhere = {f"{layer}.{name}" for layer, listed in by_layer.items() for name in listed}
        for layer in local_layers(here, by_layer):
            module, names = here.forward_funcs[layer - here._local_start], by_layer[layer]
            if not copy.names:
                copy.names, copy.tensors = names, [read(module, name) for name in names]
            for name, tensor in zip(names, copy.tensors, strict=True):  # one object in a stage, also where built apart
                replace_parameter(module, read(module, name), tensor)
        if len(copy.stages) > 1:
            copies.append(copy)
    return copies


def make_group(here: Any, stages: Iterable[int]) -> tuple[Any, list[int]]:
    """A process group for each data and tensor coordinate, made on all ranks in one order; the one of this rank."""
    mine: tuple[Any, list[int]] = (None, [])
    slices = here._grid.get_slice_parallel_world_size()
    for data in range(here._grid.data_parallel_size):
        for model in range(slices):
            where = {"data": data, "model": model} if slices > 1 else {"data": data}
            ranks = [here._grid.stage_to_global(stage_id=stage, **where) for stage in sorted(stages)]
            group = dist.new_group(ranks=ranks)
            if here.global_rank in ranks:
                mine = (group, ranks)
    return mine


def compare_frozen(copies: Sequence[Copy]) -> None:
    """What was frozen after construction must be frozen in every copy, or the ranks wait for each other.

    Raises:
        TieMismatchError: on every rank of the tie.
    """
    for copy in copies:
        mine = [tensor.requires_grad for tensor in copy.tensors]
        everyone: list[Any] = [None] * len(copy.ranks)
        dist.all_gather_object(everyone, mine, group=copy.group)
        for i, name in enumerate(copy.names):
            frozen = [str(rank) for rank, flags in zip(copy.ranks, everyone, strict=True) if not flags[i]]
            if 0 < len(frozen) < len(copy.ranks):
                what = f'"{name}" of tie "{copy.key}" is frozen on rank {", ".join(frozen)}, and not on the others'
                raise TieMismatchError(what, "freeze it on every stage that holds a copy, or on none")


def weights_to_reduce(copy: Copy) -> list[Any]:
    """What the engine reads the ``grad`` of, and reduces; small gradients as one. The same number on all ranks of the tie."""
    weights = copy.trainable()
    if not any(hasattr(w, "_hp_grad") or getattr(w, "grad_accum", None) is not None for w in weights):
        for weight in (w for w in weights if w.grad is None):  # whatever the layer did: the same number on all ranks
            weight.grad = torch.zeros_like(weight)
    small = [w for w in weights if w.numel() < SMALL and w.grad is not None and not hasattr(w, "_hp_grad")]
    gradients = [w.grad for w in small if w.grad is not None]
    if len(small) < 2 or len({gradient.dtype for gradient in gradients}) > 1:
        return [_with_gradient(weight) for weight in weights]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    for weight, part in zip(small, torch.split(flat, [w.numel() for w in small]), strict=True):
        weight.grad = part.view(weight.shape)
    return [SimpleNamespace(grad=flat), *(_with_gradient(w) for w in weights if w.numel() >= SMALL)]


def _with_gradient(weight: Any) -> Any:
    """The engine (all releases) reads ``weight.grad``; ZeRO that accumulates in another precision keeps it elsewhere."""
    accumulated = getattr(weight, "grad_accum", None)
    return weight if accumulated is None or weight.grad is not None else SimpleNamespace(grad=accumulated)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Two 64-bit sums over the bytes, one of them weighted by position, computed where the tensor is."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=tensor.device, dtype=torch.int64)
        total[0] += part.sum()
        total[1] += (part * (place * 2654435761 + 97)).sum()
    return total
