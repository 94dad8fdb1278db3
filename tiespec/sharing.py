"""Which parameters and buffers are the same memory: one object, one storage, overlapping views. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy

from tiespec.pipeline import Layer, Parameter

T = TypeVar("T")


@dataclass(frozen=True)
class View:
    """Where a tensor lies in its storage.

    Args:
        storage (int): equal for tensors of one storage.
        span (tuple[int, int]): first and past-the-end byte.
        shape (tuple[int, ...]): sizes.
        stride (tuple[int, ...]): in bytes.
        item (int): bytes of an element.
    """

    storage: int
    span: tuple[int, int]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item: int


def shared_between_layers(layers: Sequence[Layer]) -> list[list[tuple[Layer, Parameter]]]:
    """Groups of (layer, parameter or buffer) that are the same memory, over at least two layers."""
    places: dict[int, list[tuple[Layer, Parameter]]] = {}
    for layer in layers:
        for parameter in layer.parameters:
            if parameter.numel:
                places.setdefault(parameter.identity, []).append((layer, parameter))
    views = [(_view(held[0][1]), identity) for identity, held in places.items()]
    groups = ([place for key in group for place in places[key]] for group in joined(places, overlapping(views)))
    return [group for group in groups if len({layer.index for layer, _ in group}) > 1]


def _view(parameter: Parameter) -> View:
    item = parameter.nbytes // parameter.numel
    return View(parameter.storage, parameter.span, parameter.shape or (), parameter.stride, item)


def overlapping(views: Sequence[tuple[View, T]]) -> list[list[T]]:
    """Groups of at least two whose views share a byte, directly or through others."""
    groups: list[list[T]] = []
    for same in _by_storage(views):
        groups += [[payload for _, payload in group] for group in _clusters(same) if len(group) > 1]
    return groups


def _by_storage(views: Iterable[tuple[View, T]]) -> Iterable[list[tuple[View, T]]]:
    storages: dict[int, list[tuple[View, T]]] = {}
    for view, payload in views:
        storages.setdefault(view.storage, []).append((view, payload))
    return (same for same in storages.values() if len(same) > 1)


def _clusters(views: list[tuple[View, T]]) -> list[list[tuple[View, T]]]:
    """Sweep over the spans from the left; only views whose spans overlap are compared, and equal ones once."""
    alike: dict[tuple[Any, ...], list[tuple[View, T]]] = {}
    for view, payload in views:
        alike.setdefault((view.span, view.shape, view.stride), []).append((view, payload))
    heads = sorted((group[0][0] for group in alike.values()), key=lambda view: view.span)
    root, active = list(range(len(heads))), list[int]()
    for i, view in enumerate(heads):
        active = [j for j in active if heads[j].span[1] > view.span[0]]
        for j in active:
            if _root(root, i) != _root(root, j) and _share(view, heads[j]):
                root[_root(root, j)] = _root(root, i)
        active.append(i)
    clusters: dict[int, list[tuple[View, T]]] = {}
    for i, view in enumerate(heads):
        clusters.setdefault(_root(root, i), []).extend(alike[view.span, view.shape, view.stride])
    return list(clusters.values())


def _root(root: list[int], i: int) -> int:
    """The view that stands for a cluster (union-find, halving paths)."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


def _share(a: View, b: View) -> bool:
    if a.span[0] >= b.span[1] or b.span[0] >= a.span[1]:
        return False
    if (a.span, a.shape, a.stride) == (b.span, b.shape, b.stride):
        return True
    return bool(numpy.shares_memory(_as_array(a), _as_array(b)))


def _as_array(view: View) -> Any:
    """An array that is never read: NumPy looks at addresses only."""

    class Memory:
        __array_interface__ = {
            "version": 3, "typestr": f"|V{view.item}", "shape": view.shape, "strides": view.stride,
            "data": (_BASE + view.span[0], True),
        }  # fmt: skip

    return numpy.asarray(Memory())


_BASE = 2**40


def joined(keys: Iterable[int], tied: Iterable[list[int]]) -> list[list[int]]:
    """Every key in one group, groups and keys in the order of ``keys``."""
    order = {key: position for position, key in enumerate(keys)}
    first = {key: min(group, key=order.__getitem__) for group in tied for key in group}
    groups: dict[int, list[int]] = {}
    for key in order:
        groups.setdefault(first.get(key, key), []).append(key)
    return list(groups.values())
