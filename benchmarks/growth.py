"""How the time of ``check`` grows with layers, ties, stages and ranks; without the imports, which do not grow."""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.models import write_model
from benchmarks.processes import ROOT, alone
from benchmarks.report import order, shown, table
from benchmarks.turns import seconds

LAYERS = (16, 32, 64, 128, 256, 512, 1024, 2048)
TIES = (1, 10, 100, 250, 500, 1000)
STAGES = (2, 4, 8, 16, 32, 64, 128, 256)
GRIDS = {16: (1, 1), 256: (4, 4), 4096: (32, 8), 16384: (128, 8)}
"""Ranks of 16 stages -> data-parallel copies and tensor-parallel ranks."""
SLOW_SECONDS = 2.0
"""What takes longer is run once."""
ENOUGH_SECONDS = 20.0
"""After that no larger size is run."""


@dataclass(frozen=True)
class Case:
    """One check.

    Args:
        size (int): of what grows.
        target (str): TARGET.
        options (dict[str, Any]): of ``checking.Options``.
    """

    size: int
    target: str
    options: dict[str, Any] = field(default_factory=dict)


def layers_table(runs: int) -> str:
    """By the number of layers; DeepSpeed's default partition method is not linear itself."""
    cuts = {method: {"stages": (2,), "partition": method} for method in ("uniform", "parameters")}
    return _of_model("layers", {method: [(n, f"({n}, 1)", cut) for n in LAYERS] for method, cut in cuts.items()}, runs)


def ties_table(runs: int) -> str:
    """By the number of ties."""
    cut = {"stages": (2,), "partition": "uniform"}
    return _of_model("ties", {f"{LAYERS[-1]:,} layers, 2 stages": [(n, f"({LAYERS[-1]}, {n})", cut) for n in TIES]}, runs)


def stages_table(runs: int) -> str:
    """By the number of stages, with and without simulated ranks."""
    ways = {"simulated": True, "--no-simulate": False}
    cases = {
        name: [(n, "(512, 4)", {"stages": (n,), "partition": "uniform", "simulate": way}) for n in STAGES]
        for name, way in ways.items()
    }
    return _of_model("stages", cases, runs)


def ranks_table(runs: int) -> str:
    """By the number of ranks, of a pipeline of 16 stages."""
    target = f"{ROOT / 'examples' / 'large.py'}:build_layers"
    given = {n: {"stages": (16,), "data_parallel": dp, "tensor_parallel": tp} for n, (dp, tp) in GRIDS.items()}
    ways = {"simulated": True, "--no-simulate": False}
    return _table(
        "ranks", {name: [Case(n, target, {**o, "simulate": w}) for n, o in given.items()] for name, w in ways.items()}, runs
    )


def _of_model(what: str, cases: dict[str, list[tuple[int, str, dict[str, Any]]]], runs: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        target = f"{write_model(folder)}:build_layers"
        made = {name: [Case(size, target + given, options) for size, given, options in of] for name, of in cases.items()}
        return _table(what, made, runs)


def _table(what: str, cases: dict[str, list[Case]], runs: int) -> str:
    """A column of times, and one of orders, for each of ``cases``."""
    sizes = [case.size for case in next(iter(cases.values()))]
    columns: list[list[str]] = [[f"{size:,}" for size in sizes]]
    for of in cases.values():
        taken = alone(grown, of, runs)
        columns += [[shown(value) for value in taken], order(sizes, taken)]
    head = [what, *(title for name in cases for title in (name, "order"))]
    return table(head, list(zip(*columns, strict=True)))


def grown(cases: Sequence[Case], runs: int) -> list[float | None]:
    """The median seconds of each case, in this process; None after the first that took too long."""
    check(cases[0])
    found: list[float | None] = list(_until_enough(cases, runs))
    return found + [None] * (len(cases) - len(found))


def _until_enough(cases: Sequence[Case], runs: int) -> Iterator[float]:
    for case in cases:
        once = seconds(partial(check, case))
        more = [seconds(partial(check, case)) for _ in range(runs - 1 if once <= SLOW_SECONDS else 0)]
        yield statistics.median([once, *more])
        if once > ENOUGH_SECONDS:
            return


def check(case: Case) -> None:
    """Check a TARGET, as the child process of the command does."""
    from tiespec.checking import Options, check_target

    with contextlib.redirect_stdout(io.StringIO()):
        check_target(case.target, Options(**case.options))
