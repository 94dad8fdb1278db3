"""The command ``tiespec verify``: a folder for its processes, the job, the report, and the exit status."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiespec.errors import GuestError, UsageError
from tiespec.files import write_text
from tiespec.report.verification import verification_text
from tiespec.session import do
from tiespec.verification.outcome import Verification

FOREVER = 10**7
"""Seconds; the job has time limits of its own."""
JOIN_SECONDS = 120.0
LAST_SECONDS = 10.0
"""What the other ranks have to read the verdict."""
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def verified(options: dict[str, Any], format: str, debug: bool) -> tuple[str, int]:
    """The text to print, empty on all ranks but the first of a launcher's job, and the exit status.

    Raises:
        TiespecError: it could not be done.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the folder is taken away then, too
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
    """A new folder that all ranks know; what they have printed is left there when the run failed."""
    if joined is not None and joined["RANK"] != "0":
        folder = _of_first_rank(joined)
        try:
            yield folder
        finally:
            with suppress(OSError):
                Path(folder, f"read{joined['RANK']}").touch()
        return
    folder = tempfile.mkdtemp(prefix="tiespec-verify-")
    keep = False
    try:
        with _pointed_at(folder, joined):
            yield folder
            verdict = Path(folder, "verdict.json")
            keep = verdict.exists() and json.loads(verdict.read_text())["logs"] is not None
    except GuestError:
        keep = True
        raise
    finally:
        clean(folder, keep)


@contextmanager
def _pointed_at(folder: str, joined: dict[str, str] | None) -> Iterator[None]:
    """Tell the other ranks of a launcher's job where the folder is; wait at the end until they have read the verdict."""
    if joined is None:
        yield
        return
    pointer = _pointer(joined)
    write_text(str(pointer), json.dumps({"folder": folder, "pid": os.getpid()}), lambda text: True, force=True)
    try:
        yield
    finally:
        others = range(1, int(joined["WORLD_SIZE"]))
        _wait(lambda: all(Path(folder, f"read{rank}").exists() for rank in others), LAST_SECONDS)
        pointer.unlink(missing_ok=True)


def _pointer(joined: dict[str, str]) -> Path:
    """The file that says where the folder is; a port belongs to one job of a machine at a time."""
    name = f"tiespec-verify-{os.getuid()}-{joined['MASTER_PORT']}-{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    return Path(tempfile.gettempdir(), "".join(c if c.isalnum() or c == "-" else "_" for c in name) + ".json")


def _of_first_rank(joined: dict[str, str]) -> str:
    """The folder that rank 0 has made; a file whose process has ended is of an earlier run."""
    found: list[str] = []

    def look() -> bool:
        try:
            said = json.loads(_own_text(_pointer(joined)))
            os.kill(said["pid"], 0)
        except (OSError, ValueError, KeyError):
            return False
        found.append(str(said["folder"]))
        return True

    if not _wait(look, JOIN_SECONDS):
        raise GuestError(f"rank 0 said nothing for {JOIN_SECONDS:g} s", "start all ranks on one machine, as one user")
    return found[0]


def _own_text(file: Path) -> str:
    """What a file of this user says; somebody else's is refused."""
    if file.lstat().st_uid != os.getuid():
        raise UsageError(f"{file} belongs to somebody else", "set TMPDIR to a folder of your own")
    return file.read_text()


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


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
