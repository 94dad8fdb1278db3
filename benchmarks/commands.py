"""The command line beside what a user would otherwise run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.processes import FLOOR, TIESPEC, peak_memory, run
from benchmarks.ranks import MODEL
from benchmarks.report import Measure
from benchmarks.turns import by_turns

GPT = "`check` of the GPT example, 14 layers, all cuts"
LARGE = "`check` of 128 layers, 400 billion parameters, 16 x 128 x 8 ranks"
IMPORTS = "`import torch, deepspeed`"
STEPS = 3
CHECK_LARGE = (*TIESPEC, "check", "examples/large.py", "--stages", "16", "--dp", "128", "--tp", "8")
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "benchmarks.train")


def help_beside_imports(runs: int) -> Iterator[Measure]:
    """``tiespec --help``."""
    theirs = (sys.executable, "-c", "import typer, rich")
    yield _paired("`tiespec --help`", "`import typer, rich`", (*TIESPEC, "--help"), theirs, 1.5, 5 * runs)


def check_beside_imports(runs: int) -> Iterator[Measure]:
    """``tiespec check`` of the example."""
    yield _paired(GPT, IMPORTS, (*TIESPEC, "check", "examples/gpt.py"), FLOOR, 1.5, runs)


def check_beside_a_start(runs: int) -> Iterator[Measure]:
    """The same, beside the run that it replaces."""
    start = (*LAUNCH, json.dumps({"names": ["word.weight"]}), "1")
    beside = "a real start in two processes, to the end of its first step"
    yield _paired(GPT, beside, (*TIESPEC, "check", "examples/gpt.py"), start, 1 / 3, runs)


def large_beside_imports(runs: int) -> Iterator[Measure]:
    """A large pipeline: time, and memory of all processes."""
    yield _paired(LARGE, IMPORTS, CHECK_LARGE, FLOOR, 2.5, runs)
    yield Measure(f"{LARGE}: peak memory", IMPORTS, peak_memory(*CHECK_LARGE), peak_memory(*FLOOR), 1.5, "MiB")


def verify_beside_a_run(runs: int) -> Iterator[Measure]:
    """``tiespec verify``, which runs the same steps and more."""
    target = f"examples/gpt.py:build_layers({', '.join(f'{name}={value!r}' for name, value in MODEL.items())})"
    ours, theirs = (*TIESPEC, "verify", target, "--steps", str(STEPS)), (*LAUNCH, json.dumps(MODEL), str(STEPS))
    yield _paired("`verify` of a small GPT", f"`torchrun` of its {STEPS} steps", ours, theirs, 1.5, runs)


def _paired(work: str, beside: str, ours: tuple[str, ...], theirs: tuple[str, ...], most: float, runs: int) -> Measure:
    taken = by_turns({"ours": partial(run, *ours), "theirs": partial(run, *theirs)}, runs)
    return Measure(work, beside, taken["ours"], taken["theirs"], most)
