"""Commands: how long they take, and how much memory with all that they start."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
TICK_SECONDS = 0.01

TIESPEC = (str(Path(sys.executable).with_name("tiespec")),)
FLOOR = (sys.executable, "-c", "import torch, deepspeed")
"""What nothing that asks the installed DeepSpeed can do without."""


def run(*words: str) -> None:
    """Run a command to its end; findings are no failure.

    Raises:
        RuntimeError: it could not be done.
    """
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}\n{done.stderr[-2000:]}")


def peak_memory(*words: str) -> int:
    """The most bytes that a command and all that it has started hold at one time (resident)."""
    most = 0
    with psutil.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, _resident(process))
            time.sleep(TICK_SECONDS)
    return most


def _resident(process: psutil.Process) -> int:
    total = 0
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process: nothing that ran before has warmed it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()
