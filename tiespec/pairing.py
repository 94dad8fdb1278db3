"""Which parameters of the layers of one key belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tiespec.pipeline import Layer, Parameter


@dataclass(frozen=True)
class Row:
    """One parameter across the layers of a key.

    Args:
        parameters (dict[int, Parameter]): layer index -> the parameter there; a layer that has none is absent.
        by (str): what paired them: ``path``, ``position`` in the lists as written, ``identity``, ``name`` or ``shape``.
    """

    parameters: dict[int, Parameter]
    by: str

    @property
    def first(self) -> Parameter:
        """The parameter of the first layer that has it."""
        return self.parameters[min(self.parameters)]


def pair(layers: Sequence[Layer]) -> list[Row]:
    """Pair the parameters of the layers of a key, in ``named_parameters()`` order of the first layer.

    Layers with the same paths and shapes are paired by path. Otherwise, in this order: by position in the lists as they
    are written, by identity, by a name that both have, by a shape that is unique on every layer. What has no
    counterpart on every layer is a row of the layers that have it.
    """
    layouts = [[(p.path, p.shape) for p in _own(layer)] for layer in layers]
    if all(layout == layouts[0] for layout in layouts):
        return [_row(layers, [p.path] * len(layers), "path") for p in _own(layers[0])]
    rows: list[Row] = []
    for by, propose in _WAYS:
        for paths in propose(layers, _Remaining(layers, rows)):
            row = _row(layers, paths, by)
            if len({p.shape for p in row.parameters.values()}) == 1 and not _taken(row, rows):
                rows.append(row)
    remaining = _Remaining(layers, rows)
    rows += [Row({layer.index: p}, "path") for layer in layers for p in remaining.of(layer)]
    order = [(layer.index, p.path) for layer in layers for p in _own(layer)]
    return sorted(rows, key=lambda row: min(order.index((i, p.path)) for i, p in row.parameters.items()))


def _own(layer: Layer) -> list[Parameter]:
    return [p for p in layer.parameters if not p.is_buffer]


def _row(layers: Sequence[Layer], paths: Sequence[str], by: str) -> Row:
    chosen = zip(layers, paths, strict=True)
    return Row({layer.index: next(p for p in layer.parameters if p.path == path) for layer, path in chosen}, by)


def _taken(row: Row, rows: Sequence[Row]) -> bool:
    return any(other.parameters.get(i) == p for other in rows for i, p in row.parameters.items())


class _Remaining:
    """What is not in a row yet."""

    def __init__(self, layers: Sequence[Layer], rows: Sequence[Row]) -> None:
        used = {(i, p.path) for row in rows for i, p in row.parameters.items()}
        self._left = {layer.index: [p for p in _own(layer) if (layer.index, p.path) not in used] for layer in layers}

    def of(self, layer: Layer) -> list[Parameter]:
        return self._left[layer.index]


Proposals = Iterator[list[str]]


def _by_position(layers: Sequence[Layer], remaining: _Remaining) -> Proposals:
    for names in zip(*(layer.listed for layer in layers), strict=False):
        paths = [n.path for n in names if n.kind == "parameter" and n.stable and n.path is not None]
        if len(paths) == len(layers):
            yield paths


def _by_match(
    layers: Sequence[Layer], remaining: _Remaining, same: Callable[[Layer, Parameter, Layer, Parameter], bool]
) -> Proposals:
    first, *others = layers
    for parameter in remaining.of(first):
        matches = [[p.path for p in remaining.of(o) if same(first, parameter, o, p)] for o in others]
        if all(len(m) == 1 for m in matches):
            yield [parameter.path, *(m[0] for m in matches)]


def _by_identity(layers: Sequence[Layer], remaining: _Remaining) -> Proposals:
    return _by_match(layers, remaining, lambda _, a, __, b: a.identity == b.identity)


def _by_name(layers: Sequence[Layer], remaining: _Remaining) -> Proposals:
    def same(layer: Layer, a: Parameter, other: Layer, b: Parameter) -> bool:
        return a.shape == b.shape and bool({*layer.names_of(a.path)} & {*other.names_of(b.path)})

    return _by_match(layers, remaining, same)


def _by_shape(layers: Sequence[Layer], remaining: _Remaining) -> Proposals:
    shapes = [p.shape for p in remaining.of(layers[0])]
    unique = {s for s in shapes if shapes.count(s) == 1}
    return _by_match(layers, remaining, lambda _, a, __, b: a.shape == b.shape and a.shape in unique)


_WAYS: tuple[tuple[str, Callable[[Sequence[Layer], _Remaining], Proposals]], ...] = (
    ("position", _by_position),
    ("identity", _by_identity),
    ("name", _by_name),
    ("shape", _by_shape),
)


def common_name(row: Row, layers: Sequence[Layer]) -> str | None:
    """A name that means the row's parameter on every layer: the canonical one, else one as written, else any alias."""
    names = [layer.names_of(row.parameters[layer.index].path) for layer in layers]
    common = set(names[0]).intersection(*names[1:])
    if row.first.path in common:
        return row.first.path
    written = [n.text for layer in layers for n in layer.listed if n.text in common]
    return next(iter([*written, *sorted(common)]), None)
