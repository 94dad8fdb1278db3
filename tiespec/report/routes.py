"""Where the lines of ties run in a picture: between the columns, and in lanes below them, never through a box."""

from __future__ import annotations

from dataclasses import dataclass

from tiespec.overview import TieCost


@dataclass(frozen=True)
class Route:
    """A line from a layer to the next layer of its key.

    Args:
        key (str): of the tie.
        start, end (int): layers, 0-based.
        stages (tuple[int, int]): in which they are.
        lane (int | None): 0-based, below the columns; None where the stages are the same or neighbours.
    """

    key: str
    start: int
    end: int
    stages: tuple[int, int]
    lane: int | None


def routes(ties: list[TieCost], stage_of: dict[int, int]) -> list[Route]:
    """A route for every two layers of a key that follow each other; lanes are shared where they do not overlap.

    Args:
        ties (list[TieCost]): the ties.
        stage_of (dict[int, int]): layer -> stage.
    """
    pairs = [(tie.key, a, b) for tie in ties for a, b in zip(tie.layers, tie.layers[1:], strict=False)]
    free: list[int] = []  # lane -> the first stage from which it is free
    found = []
    for key, start, end in sorted(pairs, key=lambda pair: (stage_of[pair[1]], -stage_of[pair[2]], pair[1])):
        a, b = stage_of[start], stage_of[end]
        found.append(Route(key, start, end, (a, b), _lane(free, a, b) if b - a > 1 else None))
    return found


def _lane(free: list[int], start: int, end: int) -> int:
    lane = next((i for i, until in enumerate(free) if until <= start), len(free))
    free[lane : lane + 1] = [end]
    return lane


def lanes(found: list[Route]) -> int:
    """How many lanes there are."""
    return max((route.lane + 1 for route in found if route.lane is not None), default=0)
