"""Measure, and print what was measured as Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from benchmarks import commands, finder, growth, ranks
from benchmarks.machine import machine
from benchmarks.processes import ROOT
from benchmarks.report import HEAD, Measure, table

PAGE = ROOT / "docs" / "benchmarks.md"
REMARKS = ROOT / "benchmarks" / "remarks.md"
"""What the figures of the last run mean: to be read again when they change."""
TITLE = """# Benchmarks

What tiespec costs beside what one would otherwise run: `python -m benchmarks --write`. Each row is measured by turns, A B B A
A B ..., on one machine with nothing else to do; the numbers are medians.
"""


def step_beside_stock(runs: int) -> Iterator[Measure]:
    """The patched module; two processes on the CPU, a tiny GPT."""
    times = ranks.patched_against_stock(constructions=3 * runs, steps=80 * runs)
    for work, most in (("step", 1.02), ("construction", float("inf"))):
        yield Measure(f"patched module: {work}", "stock PipelineModule", times[f"{work} patched"], times[f"{work} stock"], most)


ROWS: dict[str, Callable[[int], Iterator[Measure]]] = {
    "help": commands.help_beside_imports,
    "check": commands.check_beside_imports,
    "start": commands.check_beside_a_start,
    "large": commands.large_beside_imports,
    "verify": commands.verify_beside_a_run,
    "step": step_beside_stock,
}
TABLES: dict[str, tuple[str, Callable[[int], str]]] = {
    "finder": ("The tie finder, beside other libraries'", finder.finder_table),
    "layers": ("`check` by layers, in 2 stages, for two partition methods (without imports)", growth.layers_table),
    "ties": ("`check` by ties (without imports)", growth.ties_table),
    "stages": ("`check` by stages, 512 layers (without imports)", growth.stages_table),
    "ranks": ("`check` of 400 billion parameters by ranks (without imports)", growth.ranks_table),
}


def main() -> None:
    """Measure what is named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*ROWS, *TABLES])}; all when there is none")
    parser.add_argument("--runs", type=int, default=5, help="how often each command is run")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = parser.parse_args()
    wanted = given.names or [*ROWS, *TABLES]
    if unknown := set(wanted) - {*ROWS, *TABLES}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    text = "\n".join([TITLE, machine() + ".", *_sections(wanted, given.runs)]) + "\n"
    if given.write:
        text += REMARKS.read_text()
    print(text)
    if given.write:
        PAGE.write_text(text)


def _sections(wanted: list[str], runs: int) -> Iterator[str]:
    rows = [measure.cells() for name in ROWS if name in wanted for measure in ROWS[name](runs)]
    if rows:
        yield f"\n{table(HEAD, rows)}"
    for name in TABLES:
        if name in wanted:
            title, make = TABLES[name]
            yield f"\n## {title}\n\n{make(runs)}"


if __name__ == "__main__":
    main()
