"""Which parameters of a key are listed, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tiespec.pairing import Row
from tiespec.pipeline import Layer, Parameter, Tie
from tiespec.usage import Usage


@dataclass(frozen=True)
class Filters:
    """Which parameters may be listed.

    Args:
        min_numel (int): at least so many elements.
        max_numel (int | None): at most so many elements.
        include (tuple[str, ...]): if given, only paths that match one of these globs.
        exclude (tuple[str, ...]): no paths that match one of these globs.
    """

    min_numel: int = 1
    max_numel: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def reason(self, parameter: Parameter) -> str | None:
        """Why a parameter is filtered out; None if it is not."""
        if parameter.numel < self.min_numel:
            return f"below --min-numel {self.min_numel}"
        if self.max_numel is not None and parameter.numel > self.max_numel:
            return f"above --max-numel {self.max_numel}"
        if self.include and not any(fnmatchcase(parameter.path, glob) for glob in self.include):
            return "matches no --include"
        matching = next((glob for glob in self.exclude if fnmatchcase(parameter.path, glob)), None)
        return None if matching is None else f"matches --exclude {matching}"


@dataclass(frozen=True)
class Choice:
    """What was decided for a row.

    Args:
        row (Row): the parameter across the layers of the key.
        used_by (tuple[int, ...] | None): the layers at which it gets a gradient; None when that is unknown.
        reason (str | None): why it is left out; None when it is listed.
        filtered (bool): whether it is left out by a filter alone.
    """

    row: Row
    used_by: tuple[int, ...] | None
    reason: str | None
    filtered: bool = False


def layers_text(indices: Sequence[int]) -> str:
    """``layer 3``, ``layers 3, 13``."""
    return f"layer{'s' if len(indices) > 1 else ''} {', '.join(str(i) for i in indices)}"


def choose(row: Row, tie: Tie, layers: Sequence[Layer], usage: Usage, filters: Filters) -> Choice:
    """Decide whether a parameter is listed: it must get a gradient at every layer of the key, and pass the filters."""
    used_by = None
    if usage.used is not None:
        used_by = tuple(i for i, p in row.parameters.items() if p.path in usage.used[i])
    reason = _left_out_by_use(row, tie, layers, used_by)
    if reason is not None:
        return Choice(row, used_by, reason)
    reason = filters.reason(row.first)
    return Choice(row, used_by, reason, filtered=reason is not None)


def _left_out_by_use(row: Row, tie: Tie, layers: Sequence[Layer], used_by: tuple[int, ...] | None) -> str | None:
    missing = [i for i in tie.layers if i not in row.parameters]
    if missing:
        other = next((p for y in layers if y.index == missing[0] for p in y.parameters if p.path == row.first.path), None)
        if other is not None and other.shape != row.first.shape:
            return f"has another shape at layer {missing[0]}: {'x'.join(str(size) for size in other.shape or ())}"
        return f"no counterpart at {layers_text(missing)}"
    frozen = [i for i, p in row.parameters.items() if not p.requires_grad]
    if frozen:
        return "frozen" if len(frozen) == len(tie.layers) else f"frozen at {layers_text(frozen)}"
    if used_by is None:
        return None
    unused = [i for i in tie.layers if i not in used_by]
    return f"unused at {layers_text(unused)}" if unused else None
