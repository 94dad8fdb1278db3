"""Run a job in a child process and survive whatever the user's code does there. Loads neither torch nor deepspeed."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from tiespec.blame import blame_dump
from tiespec.errors import GuestError, error_of
from tiespec.pipeline import Location

_CHILD = (
    "import sys; sys.path.pop(0); sys.path.append(sys.argv[4]);"
    "from tiespec.worker import main; main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
)
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DUMP_SECONDS = 2.0
_TICK_SECONDS = 0.1


@dataclass
class _Answer:
    """What the child has said so far."""

    phase: str = "starting"
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    pending: bytes = field(default=b"", repr=False)

    def feed(self, data: bytes) -> None:
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            for key, value in json.loads(line).items():
                setattr(self, key, value)


def run_job(
    job: str,
    options: dict[str, Any],
    timeout: float,
    on_output: Callable[[bytes], None],
    on_tick: Callable[[str], None] = lambda phase: None,
) -> dict[str, Any]:
    """Do a job in a child process.

    Args:
        job (str): a key of ``jobs.JOBS``.
        options (dict[str, Any]): what it takes, as JSON.
        timeout (float): seconds until the child is ended.
        on_output (Callable): called with what the child writes to its stdout and stderr.
        on_tick (Callable): called with the phase about ten times a second.

    Raises:
        TiespecError: what the child raised.
        GuestError: it ended without an answer, or took too long.
    """
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryFile() as faults, os.fdopen(answer_read, "rb", buffering=0) as answers:
        try:
            child = _start(job, options, answer_write, faults)
        finally:
            os.close(answer_write)
        answer = _Answer()
        try:
            deadline = time.monotonic() + timeout
            in_time = _listen(child, answers, answer, deadline, on_output, on_tick) and _ended(child, deadline)
            if not in_time:
                _ask_for_stack(child, faults)
        finally:
            _end(child)
        if answer.error is not None:
            raise error_of(answer.error)
        if answer.result is None or not in_time:
            raise _no_answer(answer, child.returncode, None if in_time else timeout, _read(faults))
        return answer.result


def _start(job: str, options: dict[str, Any], answer_write: int, faults: IO[bytes]) -> subprocess.Popen[bytes]:
    request = json.dumps({"job": job, "options": options, "host": os.getpid()})
    arguments = [str(answer_write), str(faults.fileno()), request, _PACKAGE_PARENT]
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(answer_write, faults.fileno()),
        start_new_session=True,
    )


def _listen(
    child: subprocess.Popen[bytes],
    answers: IO[bytes],
    answer: _Answer,
    deadline: float,
    on_output: Callable[[bytes], None],
    on_tick: Callable[[str], None],
) -> bool:
    """Read until the child has answered or ended; False when the deadline passed first."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        selector.register(child.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            ready = {key.fileobj for key, _ in selector.select(_TICK_SECONDS)}
            if child.stdout in ready and not _relay(child.stdout, on_output):
                selector.unregister(child.stdout)
            if answers in ready:
                data = os.read(answers.fileno(), 1 << 16)
                answer.feed(data)
                if not data:
                    _relay(child.stdout, on_output)
                    return True
            on_tick(answer.phase)
    return False


def _ended(child: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the end of a child that will say nothing more; False when the deadline passed first."""
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _relay(stream: IO[bytes], on_output: Callable[[bytes], None]) -> bool:
    """Pass on what can be read now; False at the end."""
    try:
        data = os.read(stream.fileno(), 1 << 16)
    except BlockingIOError:
        return True
    if data:
        on_output(data)
    return bool(data)


def _ask_for_stack(child: subprocess.Popen[bytes], faults: IO[bytes]) -> None:
    """Have faulthandler write the child's stack; it answers even from an endless loop in C."""
    if not hasattr(signal, "SIGUSR1") or child.poll() is not None:
        return
    child.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < deadline and os.fstat(faults.fileno()).st_size == 0:
        time.sleep(_TICK_SECONDS / 10)
    time.sleep(_TICK_SECONDS)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _read(faults: IO[bytes]) -> str:
    faults.seek(0)
    return faults.read().decode(errors="replace")


def _no_answer(answer: _Answer, status: int, timeout: float | None, dump: str) -> GuestError:
    where = blame_dump(dump)
    if timeout is not None:
        return _located(
            f"still running after {timeout:g} s (while {answer.phase})",
            "an endless loop? --timeout SECONDS gives it more time",
            where,
        )
    if answer.exit is not None:
        called = Location(answer.exit["file"], answer.exit["line"]) if answer.exit["file"] else None
        return _located(
            f"the file ends the program: os._exit({answer.exit['status']}) (while {answer.phase})",
            "put what runs the training under `if __name__ == '__main__':`",
            called,
        )
    if status < 0:
        return _located(f"{_signal_text(-status)} (while {answer.phase})", _signal_help(-status), where)
    return _located(f"the program ended with status {status} and no answer (while {answer.phase})", "", where)


def _located(message: str, help: str, where: Location | None) -> GuestError:
    return GuestError(message, help, where.file if where else None, where.line if where else None)


def _signal_text(number: int) -> str:
    if number == signal.SIGKILL:
        return "the program was killed (SIGKILL): out of memory?"
    return f"the program crashed: {signal.strsignal(number)} ({signal.Signals(number).name})"


def _signal_help(number: int) -> str:
    if number == signal.SIGKILL:
        return "build the model in a function: what a function returns is built on the meta device, without memory"
    return "the crash is in the file, or in an extension that it uses"
