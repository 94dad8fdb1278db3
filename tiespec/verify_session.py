"""The command ``tiespec verify``: a folder for its processes, the job, the report, and the exit status."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiespec.errors import GuestError, UsageError
from tiespec.report.verification import verification_text
from tiespec.session import do
from tiespec.verification.outcome import Verification

FOREVER = 10**7
"""Seconds; the job has time limits of its own."""
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def verified(options: dict[str, Any], format: str, debug: bool) -> tuple[str, int]:
    """The text to print, empty on all ranks but the first of a launcher's job, and the exit status.

    Raises:
        TiespecError: it could not be done.
    """
    joined = launcher_variables()
    with _folder(joined) as folder:
        found = Verification.model_validate(do("verify", {**options, "folder": folder, "joined": joined}, FOREVER, debug))
    text = found.to_json() if format == "json" else verification_text(found)
    status = 0 if found.outcome == "ok" else 1
    return ("" if joined is not None and joined["RANK"] != "0" else text), status


def launcher_variables() -> dict[str, str] | None:
    """What torchrun or the deepspeed launcher has set; None when neither has started this process.

    Raises:
        UsageError: the job is on several machines.
    """
    if not all(name in os.environ for name in LAUNCHER):
        return None
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) != os.environ["WORLD_SIZE"]:
        raise UsageError("the job is on several machines, and verify joins those of one", "start all ranks on one machine")
    return {name: os.environ[name] for name in LAUNCHER}


@contextmanager
def _folder(joined: dict[str, str] | None) -> Iterator[str]:
    """A folder that all ranks know; what they have printed is left there when the run failed."""
    if joined is None:
        folder = tempfile.mkdtemp(prefix="tiespec-verify-")
    else:
        name = f"tiespec-verify-{os.getuid()}-{os.getppid()}-{joined['MASTER_PORT']}"
        folder = os.path.join(tempfile.gettempdir(), name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _must_be_ours(folder)
    keep = False
    try:
        yield folder
        verdict = Path(folder, "verdict.json")
        keep = verdict.exists() and json.loads(verdict.read_text())["logs"] is not None
    except GuestError:
        keep = True
        raise
    finally:
        if joined is None:
            clean(folder, keep)


def _must_be_ours(folder: str) -> None:
    status = os.lstat(folder)
    if status.st_uid != os.getuid() or not os.path.isdir(folder) or os.path.islink(folder):
        raise UsageError(f"{folder} belongs to somebody else", "set TMPDIR to a folder of your own")


def clean(folder: str, keep_logs: bool) -> None:
    """Take away what the processes have written; all of it, or all but what they have printed."""
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("log"):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.is_file():
            os.unlink(entry.path)
