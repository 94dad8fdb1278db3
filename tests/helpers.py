"""What several tests need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiespec.analyse import analyse_target
from tiespec.choices import Filters
from tiespec.generation import Generated, generate_spec
from tiespec.spec import TieSpec

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
"""


def generated(
    target: str, setup: str | None = None, given: tuple[str, ...] = (), stages: int | None = None, **filters: Any
) -> Generated:
    """What ``tiespec generate`` finds, in this process."""
    analysis = analyse_target(target, setup, given)
    return generate_spec(analysis.pipeline, analysis.usage, Filters(**filters), stages)


def lists(spec: TieSpec) -> dict[str, Any]:
    """Key -> list, or layer -> list where they differ."""
    return {tie.key: tie.by_layer if tie.tied_weight_attr is None else tie.tied_weight_attr for tie in spec.ties}


def reasons(spec: TieSpec, key: str) -> dict[str, str | None]:
    """Path -> why it is left out."""
    return {p.path: p.reason for tie in spec.ties if tie.key == key for p in tie.left_out}


def interruptible() -> None:
    """SIGINT as a terminal's foreground has it: a shell that starts the tests in the background has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def tiespec(*arguments: str, cwd: str | Path = ROOT, stdin: str = "", seconds: float = 120, **environment: str) -> Any:
    """Run the command line; stdout and stderr as text."""
    return subprocess.run(
        [sys.executable, "-m", "tiespec", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
