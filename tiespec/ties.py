"""The tie finder for a plain module."""

from __future__ import annotations

from collections.abc import Iterator

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
    tensors, repeated = _tensors(module)
    sharing = _sharing_storage(tensors)
    if not repeated and not sharing:
        return []  # the usual case, without a name having been made
    groups = [group for keys in sharing for group in _overlapping(tensors, keys)]
    names = _names(module, repeated.union(*groups))
    if not groups:
        return list(names.values())
    found = [[name for key in group for name in names[key]] for group in joined(names, groups)]
    return [group for group in found if len(group) > 1]


def _tensors(module: nn.Module) -> tuple[dict[int, Tensor], set[int]]:
    """``id`` -> tensor, and the ids of those that are registered more than once. The dict keeps them alive."""
    tensors: dict[int, Tensor] = {}
    repeated: set[int] = set()
    modules = [module]
    while modules:
        part = modules.pop()
        modules.extend(child for child in part._modules.values() if child is not None)
        for held in (part._parameters, part._buffers):
            for tensor in held.values():
                if tensor is None:
                    continue
                key = id(tensor)
                if key in tensors:
                    repeated.add(key)
                tensors[key] = tensor
    return tensors, repeated


def _sharing_storage(tensors: dict[int, Tensor]) -> list[list[int]]:
    """The ids of tensors that have one storage."""
    first: dict[int, int] = {}
    sharing: dict[int, list[int]] = {}
    for key, tensor in tensors.items():
        if nn.parameter.is_lazy(tensor):
            continue
        storage = tensor.untyped_storage()._cdata
        owner = first.setdefault(storage, key)
        if owner == key:
            continue
        if storage in sharing:
            sharing[storage].append(key)
        else:
            sharing[storage] = [owner, key]
    return list(sharing.values())


Span = tuple[int, int, bool, int]
"""First and past-the-end byte in the storage, whether all bytes between are the tensor's, and its id."""


def _overlapping(tensors: dict[int, Tensor], keys: list[int]) -> list[list[int]]:
    """Groups of tensors of one storage that share a byte. Most lie one after the other, or are the same bytes."""
    groups = []
    for run in _runs(sorted(_span(key, tensors[key]) for key in keys)):
        if all(span[:3] == (*run[0][:2], True) for span in run):
            groups.append([span[3] for span in run])
        else:
            groups += overlapping([(view_of(tensors[span[3]]), span[3]) for span in run])
    return groups


def _span(key: int, tensor: Tensor) -> Span:
    if not tensor.is_contiguous():
        return (*view_of(tensor).span, False, key)
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.nbytes, True, key  # type: ignore[return-value]  # on meta, too, these are integers


def _runs(spans: list[Span]) -> Iterator[list[Span]]:
    """Spans of which each overlaps one before it, where there are at least two."""
    run, reach = spans[:1], spans[0][1]
    for span in spans[1:]:
        if span[0] < reach:
            run.append(span)
            reach = max(reach, span[1])
            continue
        if len(run) > 1:
            yield run
        run, reach = [span], span[1]
    if len(run) > 1:
        yield run


def _names(module: nn.Module, wanted: set[int]) -> dict[int, list[str]]:
    """The names of the tensors with these ids, in the order of the modules."""
    names: dict[int, list[str]] = {}
    todo = [("", module)]
    while todo:
        prefix, part = todo.pop()
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if id(tensor) in wanted:
                    names.setdefault(id(tensor), []).append(prefix + name)
        children = [(f"{prefix}{name}.", child) for name, child in part._modules.items() if child is not None]
        todo.extend(reversed(children))
    return names


def view_of(tensor: Tensor) -> View:
    """Where a tensor lies in its storage."""
    item = tensor.element_size()
    start, stride = int(tensor.storage_offset()) * item, tuple(int(step) * item for step in tensor.stride())
    extent = sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True)) + item if tensor.numel() else 0
    return View(tensor.untyped_storage()._cdata, (start, start + extent), tuple(tensor.shape), stride, item)
