"""The tie finder for a plain module."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from tiespec.sharing import View, joined, overlapping


def find_ties(module: nn.Module) -> list[list[str]]:
    """The tied names of a module: parameters and buffers that share memory, on meta as on real tensors.

    Linear in the number of tensors. Disjoint views of one storage are no tie, and neither are equal values.

    Args:
        module (nn.Module): any module.

    Returns:
        list[list[str]]: groups of at least two names, in order of their first name.
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                key = id(tensor)
                tensors[key] = tensor
                names.setdefault(key, []).append(f"{prefix}.{name}" if prefix else name)
    tied = [overlapping([(view_of(t), id(t)) for t in same]) for same in _sharing_storage(tensors.values())]
    groups = joined(tensors, (group for found in tied for group in found))
    return [found for group in groups if len(found := [name for key in group for name in names[key]]) > 1]


def _sharing_storage(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    storages: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        if nn.parameter.is_lazy(tensor):
            continue
        storages.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return [same for same in storages.values() if len(same) > 1]


def view_of(tensor: Tensor) -> View:
    """Where a tensor lies in its storage."""
    item = tensor.element_size()
    start, stride = int(tensor.storage_offset()) * item, tuple(int(step) * item for step in tensor.stride())
    extent = sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True)) + item if tensor.numel() else 0
    return View(tensor.untyped_storage()._cdata, (start, start + extent), tuple(tensor.shape), stride, item)
