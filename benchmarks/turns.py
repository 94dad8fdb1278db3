"""Two or more pieces of work, measured by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def by_turns(work: Mapping[str, Callable[[], Any]], times: int, warm: bool = True) -> dict[str, float]:
    """The median seconds of each, run A B, B A, A B, ...

    Args:
        work (Mapping[str, Callable]): name -> what to run.
        times (int): how often each of them is counted.
        warm (bool): whether each runs once before, uncounted.
    """
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(-1 if warm else 0, times):
        for name in list(work) if turn % 2 else reversed(list(work)):
            spent = seconds(work[name])
            if turn >= 0:
                taken[name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def seconds(work: Callable[[], Any]) -> float:
    """What it takes to run it once."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
