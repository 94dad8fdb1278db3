"""What was measured, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One piece of work beside another.

    Args:
        work (str): what tiespec did.
        beside (str): what it is compared with.
        ours, theirs (float): seconds or bytes.
        most (float): the aim: ``ours / theirs`` is at most this; infinite where there is none.
        unit (str): ``s`` or ``MiB``.
    """

    work: str
    beside: str
    ours: float
    theirs: float
    most: float
    unit: str = "s"

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        ratio, values = self.ours / self.theirs, [shown(value, self.unit) for value in (self.ours, self.theirs)]
        aim = ("-", "-") if math.isinf(self.most) else (f"at most {self.most:.3g} x", kept(ratio, self.most))
        return (self.work, self.beside, *values, f"{ratio:.3f}", *aim)


HEAD = ("work", "beside", "tiespec", "the other", "ratio", "aim", "kept")


def kept(value: float, most: float) -> str:
    """Whether an aim is kept, in a word."""
    return "yes" if value <= most else "**no**"


def shown(value: float | None, unit: str = "s") -> str:
    """Seconds or bytes with three digits; a dash for what was not run."""
    if value is None:
        return "-"
    if unit == "MiB":
        return f"{value / 2**20:.0f} MiB"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def order(sizes: Sequence[int], values: Sequence[float | None]) -> list[str]:
    """The exponent with which each value has grown since the one before: 1 is linear, 2 quadratic."""
    found = ["-"]
    for i in range(1, len(sizes)):
        before, now = values[i - 1], values[i]
        known = before is not None and now is not None
        found.append(f"{math.log(now / before) / math.log(sizes[i] / sizes[i - 1]):.2f}" if known else "-")
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
