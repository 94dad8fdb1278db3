"""Start the processes of a verification through torch's launcher, watch their reports, and leave none behind."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, Std, start_processes

from tiespec.blame import blame_exception
from tiespec.errors import GuestError, TieError, TiespecError, error_of, fields_of
from tiespec.guest import die_with_the_parent, leave
from tiespec.verification.rank import reporter, run_rank
from tiespec.verification.task import Task

JOIN_SECONDS = 300.0
"""Until every rank has joined the process group: the first run of a machine compiles an extension of DeepSpeed."""
GRACE_SECONDS = 3.0
"""What the other ranks have to say what they raised, after the first one."""
STACK_SECONDS = 2.0
"""What a rank has to write its stack."""
POLL_SECONDS = 0.05
START_METHOD = "fork" if hasattr(os, "fork") and os.uname().sysname == "Linux" else "spawn"
"""A fork has torch and DeepSpeed loaded already."""

Line = dict[str, Any]
logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.ERROR)  # it warns that it kills


@dataclass
class Ended:
    """How the ranks ended.

    Args:
        reports (dict[int, list[Line]]): what each rank has said.
        hung (bool): whether there was no news for too long.
        gone (dict[int, str]): ranks that ended without a word, and how.
        logs (dict[int, str]): files with what they have printed, for those started here.
    """

    reports: dict[int, list[Line]]
    hung: bool = False
    gone: dict[int, str] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)

    def errors(self) -> dict[int, Line]:
        """Rank -> what it raised."""
        return {rank: line["error"] for rank, lines in self.reports.items() for line in lines if "error" in line}

    def losses(self) -> list[float]:
        """Of rank 0, one per step."""
        return [line["loss"] for line in self.reports.get(0, []) if "loss" in line]

    def phase(self, rank: int) -> str:
        """The last thing that a rank has reported."""
        phases = [f"step {i}" if "loss" in line else line.get("phase") for i, line in enumerate(self.reports[rank])]
        return next((phase for phase in reversed(phases) if phase), "starting")


def run_alone(function: Callable[[Task], None], task: Task, timeout: float) -> None:
    """Run a function on the task in a process of its own: nothing of the user's code stays in this one.

    Raises:
        TiespecError: what the function raised, or how its process ended.
    """
    name = function.__name__
    with _processes(_alone, {0: (function, task, os.getpid())}, {0: {}}, Path(task.folder, f"log-{name}")) as (context, _):
        deadline, file = time.monotonic() + timeout, Path(task.folder, f"{name}.json")
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if context.wait(0) is not None and not file.exists():
                raise GuestError(f"the process that runs {name} ended without an answer", "its output is in the log folder")
    if not file.exists():
        raise GuestError(
            f"still running after {timeout:g} s (while in {name})", "an endless loop? --timeout gives it more time"
        )
    error = json.loads(file.read_text())
    if error is not None:
        raise error_of(error)


def _alone(function: Callable[[Task], None], task: Task, parent: int) -> None:
    _own_process(parent, str(Path(task.folder, f"stack-{function.__name__}")))
    error = None
    try:
        function(task)
    except TiespecError as raised:
        error = fields_of(raised)
    except Exception as raised:
        traceback.print_exc()
        error = fields_of(GuestError(f"{type(raised).__name__}: {raised} (while in {function.__name__})"))
    file = Path(task.folder, f"{function.__name__}.json")
    file.with_suffix(".new").write_text(json.dumps(error))
    file.with_suffix(".new").replace(file)


def run_ranks(
    task: Task, places: dict[int, dict[str, str]], world_size: int, timeout: float, tick: Callable[[str], None]
) -> Ended:
    """Run the ranks of this machine and wait until all ranks of the job have ended, or there is no news.

    Args:
        task (Task): what to run.
        places (dict[int, dict[str, str]]): rank -> its environment; the ranks that are started here.
        world_size (int): ranks of the whole job, all of which report into the task's folder.
        timeout (float): seconds without news after which the run hangs, once all ranks have joined.
        tick (Callable): called with the phase.
    """
    ranks = sorted(places)
    arguments = {i: (task, rank, os.getpid()) for i, rank in enumerate(ranks)}
    environments = {i: places[rank] for i, rank in enumerate(ranks)}
    with _processes(_rank, arguments, environments, Path(task.folder, "logs", f"from-{ranks[0]}")) as (context, logs):
        ended = _watched(task, context, ranks, world_size, timeout, tick)
        ended.logs = {rank: logs[i] for i, rank in enumerate(ranks)}
        if ended.hung:
            _ask_for_stacks(task, context, ranks)
    return ended


def _watched(
    task: Task, context: PContext, ranks: list[int], world_size: int, timeout: float, tick: Callable[[str], None]
) -> Ended:
    news, since, stop_at = -1, time.monotonic(), None
    while True:
        time.sleep(POLL_SECONDS)
        result = context.wait(0)
        if result is not None and result.is_failed():
            for i, failure in result.failures.items():
                reporter(task, ranks[i])(gone=_how(failure.exitcode))
        ended = Ended(read_reports(task.folder, world_size))
        ended.gone = {rank: line["gone"] for rank, lines in ended.reports.items() for line in lines if "gone" in line}
        tick(f"{ended.phase(0)}, {world_size} ranks")
        if all(lines and "end" in lines[-1] for lines in ended.reports.values()):
            return ended
        if ended.gone:
            return ended
        if ended.errors() or (result is not None and len(ranks) == world_size):
            stop_at = stop_at or time.monotonic() + GRACE_SECONDS
        if stop_at is not None and (time.monotonic() > stop_at or len(ended.errors()) == world_size):
            return ended
        if sum(map(len, ended.reports.values())) != news:
            news, since = sum(map(len, ended.reports.values())), time.monotonic()
        limit = timeout if all(ended.reports.values()) else max(timeout, JOIN_SECONDS)
        if time.monotonic() - since > limit:
            ended.hung = True
            return ended


def _how(status: int) -> str:
    if status < 0:
        return f"was killed ({signal.Signals(-status).name})"
    return f"ended with status {status} and no word"


def read_reports(folder: str, world_size: int) -> dict[int, list[Line]]:
    """What every rank has said so far."""
    found: dict[int, list[Line]] = {}
    for rank in range(world_size):
        file = Path(folder, f"report{rank}")
        text = file.read_text() if file.exists() else ""
        found[rank] = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return found


def _rank(task: Task, rank: int, parent: int) -> None:
    _own_process(parent, str(Path(task.folder, "logs", f"stack{rank}")))
    say = reporter(task, rank)
    try:
        run_rank(task, say)
    except BaseException as error:
        traceback.print_exc()
        say(error=described(error))


def described(error: BaseException) -> Line:
    """An error as a line of JSON: its text, whether it is the patched module's, and the user's line it came from."""
    where = blame_exception(error)
    wrapped = isinstance(error, TiespecError) and not isinstance(error, TieError)
    cause = error.__cause__ if wrapped and error.__cause__ is not None else error
    return {
        "text": f"{type(cause).__name__}: {cause}",
        "refused": isinstance(cause, TieError),
        "system": isinstance(cause, OSError),
        "file": where.file if where else None,
        "line": where.line if where else None,
    }


def _own_process(parent: int, stacks: str) -> None:
    """What a process that was forked from this one must not inherit; it ends when its parent does."""
    os._exit = leave
    torch.set_num_threads(1)  # as many processes as cores, or more
    die_with_the_parent(parent)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        Path(stacks).parent.mkdir(parents=True, exist_ok=True)
        faulthandler.register(signal.SIGUSR1, open(stacks, "w"), all_threads=True)  # noqa: SIM115 open until the end


def _ask_for_stacks(task: Task, context: PContext, ranks: list[int]) -> None:
    if not hasattr(signal, "SIGUSR1"):
        return
    for pid in context.pids().values():
        os.kill(pid, signal.SIGUSR1)
    files = [Path(task.folder, "logs", f"stack{rank}") for rank in ranks]
    deadline = time.monotonic() + STACK_SECONDS
    while time.monotonic() < deadline and not all(f.exists() and f.stat().st_size for f in files):
        time.sleep(POLL_SECONDS)


@contextmanager
def _processes(entry: Callable[..., None], arguments: dict[int, Any], environments: dict[int, Any], logs: Path) -> Any:
    """Processes of torch's launcher, and the files with their output; killed at the end."""
    logs.mkdir(parents=True, exist_ok=True)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    context = start_processes(
        "tiespec", entry, arguments, environments, DefaultLogsSpecs(str(logs), Std.ALL), start_method=START_METHOD
    )  # fmt: skip
    for number, handler in handlers.items():  # the launcher has set its own
        signal.signal(number, handler)
    try:
        yield context, dict(context.stderrs)
    finally:
        context.close(signal.SIGKILL, timeout=5)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
