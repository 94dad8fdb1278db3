"""The tie finder beside accelerate's and safetensors'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from benchmarks.processes import alone
from benchmarks.report import kept, order, shown, table
from benchmarks.turns import by_turns, seconds

SIZES = (10_000, 20_000, 50_000, 100_000, 200_000)
LAYOUTS = ("modules", "one storage")
SLOW_SECONDS = 1.0
"""What takes longer is run once."""
ENOUGH_SECONDS = 5.0
"""What takes longer is not run on anything larger: it may take six times as long there."""
HEAD = (
    "parameters",
    "ties",
    "laid out as",
    "tiespec",
    "order",
    "accelerate",
    "safetensors",
    "to the faster right one",
    "never slower",
)
NOTE = (
    "Ties: pairs of names for one weight, or of Parameters on the same memory. Order: the exponent of the growth, 1 is linear. "
    f"A dash: not run, because a smaller size took more than {ENOUGH_SECONDS:g} s. safetensors takes a `state_dict()`, whose "
    "making counts. accelerate compares objects and sees no ties on one storage; safetensors calls all that is on one storage "
    "shared. The ratio is to the faster of those that see ties where there are some, and none where there are none."
)

Finder = Callable[[nn.Module], Any]


def finder_table(runs: int) -> str:
    """Every layout, with and without ties."""
    rows = [row for layout in LAYOUTS for tied in (False, True) for row in alone(_rows, layout, tied, runs)]
    return f"{table(HEAD, rows)}\n\n{NOTE}"


def _rows(layout: str, tied: bool, runs: int) -> list[list[str]]:
    found = list(_grown(layout, tied, runs))
    orders = order(SIZES, [taken["tiespec"] for taken in found])
    return [_cells(size, size // 4 * tied, layout, *pair) for size, *pair in zip(SIZES, found, orders, strict=True)]


def _cells(size: int, ties: int, layout: str, taken: Mapping[str, float], grown: str) -> list[str]:
    others = [taken.get("accelerate"), taken.get("safetensors")]
    known = [taken[name] for name in _right(layout, ties) if name in taken]
    ratio = taken["tiespec"] / min(known) if known else None
    said = ["-", "-"] if ratio is None else [f"{ratio:.3f}", kept(ratio, 1.0)]
    return [f"{size:,}", f"{ties:,}", layout, shown(taken["tiespec"]), grown, *map(shown, others), *said]


@cache
def _right(layout: str, ties: int) -> list[str]:
    """The libraries that see ties where there are some, and none where there are none: the others answer something else."""
    module = built(layout, 8, min(ties, 2))
    return [name for name, find in _others().items() if any(len(group) > 1 for group in find(module)) is bool(ties)]


def _grown(layout: str, tied: bool, runs: int) -> Iterator[dict[str, float]]:
    """The seconds of each finder, for each size."""
    others = _others()
    for size in SIZES:
        taken = _measured(built(layout, size, size // 4 * tied), others, runs)
        others = {name: find for name, find in others.items() if taken[name] <= ENOUGH_SECONDS}
        yield taken


def _measured(module: nn.Module, others: Mapping[str, Finder], runs: int) -> dict[str, float]:
    from tiespec import find_ties

    once = {name: seconds(partial(find, module)) for name, find in others.items()}
    quick = {name: partial(others[name], module) for name, spent in once.items() if spent <= SLOW_SECONDS}
    return {**once, **by_turns({"tiespec": partial(find_ties, module), **quick}, runs)}


def _others() -> dict[str, Finder]:
    from accelerate.utils import find_tied_parameters
    from safetensors.torch import _find_shared_tensors

    return {"accelerate": find_tied_parameters, "safetensors": lambda module: _find_shared_tensors(module.state_dict())}


def built(layout: str, parameters: int, ties: int) -> nn.Module:
    """A module with that many names of parameters, two in each part; both are one weight in the first ``ties`` parts.

    Args:
        layout (str): one of ``LAYOUTS``: tensors of their own, or slices of one flat tensor.
        parameters (int): even.
        ties (int): at most half of ``parameters``.
    """
    flat = torch.zeros(2 * parameters) if layout == "one storage" else None
    return nn.ModuleList([_part(flat, 4 * i, i < ties) for i in range(parameters // 2)])


def _part(flat: torch.Tensor | None, start: int, tied: bool) -> nn.Module:
    part = nn.Module()
    part.a = _weight(flat, start)
    part.b = part.a if tied and flat is None else _weight(flat, start if tied else start + 2)
    return part


def _weight(flat: torch.Tensor | None, start: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(2) if flat is None else flat[start : start + 2])
