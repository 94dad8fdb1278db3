"""The child process that runs the user's code. It answers in lines of JSON and never lets the guest have the last word.

Started by ``host.py`` as ``main(answer_fd, fault_fd, request)``. Every line it writes to ``answer_fd`` is an object with
one of the keys ``phase``, ``exit`` (the guest called ``os._exit``), ``error`` or ``result``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from tiespec.blame import blame_frame
from tiespec.errors import INTERNAL_HELP, TiespecError, fields_of
from tiespec.guest import die_with_the_parent, guest, leave
from tiespec.jobs import JOBS

FAULT_SIGNAL = getattr(signal, "SIGUSR1", None)


def main(answer_fd: int, fault_fd: int, request: str) -> NoReturn:
    """Do one job and end the process, whatever threads or exit handlers the guest has left behind.

    Args:
        answer_fd (int): where the lines of JSON go.
        fault_fd (int): where ``faulthandler`` writes the stack, on a crash or when the host asks.
        request (str): JSON with ``job``, its ``options``, and the ``host``'s process id.
    """
    asked = json.loads(request)
    _guard(answer_fd, fault_fd, asked["host"])

    def say(**line: Any) -> None:
        _WRITE(answer_fd, (_DUMPS(line) + "\n").encode())

    _report_exits(say)
    try:
        with guest("importing deepspeed"):
            import_module("deepspeed")
        say(result=JOBS[asked["job"]](asked["options"], lambda phase: say(phase=phase)))
    except TiespecError as error:
        say(error=fields_of(error))
    except Exception as error:
        say(error=fields_of(_internal(error)))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the guest may have closed them
            stream.flush()
    leave(0)


_WRITE, _DUMPS = os.write, json.dumps
"""As they were before the guest could replace them."""


def _internal(error: Exception) -> TiespecError:
    """Guest code is called through ``guest()``, so whatever else arrives here is ours."""
    return TiespecError(f"internal error: {type(error).__name__}: {error}", INTERNAL_HELP)


def _guard(answer_fd: int, fault_fd: int, host: int) -> None:
    os.set_inheritable(answer_fd, False)  # what the guest starts must not keep the host waiting
    os.set_inheritable(fault_fd, False)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # nothing here needs a GPU, or a warning that there is none
    faulthandler.enable(fault_fd)
    if FAULT_SIGNAL is not None:
        faulthandler.register(FAULT_SIGNAL, fault_fd, all_threads=False)
    if sys.platform == "linux":
        die_with_the_parent(host)
        _be_first_to_go_when_memory_is_short()
        _limit_memory()


def _be_first_to_go_when_memory_is_short() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _limit_memory() -> None:
    """A guest that takes all memory gets a MemoryError, and the machine lives on."""
    import resource

    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (available, soft) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def _report_exits(say: Any) -> None:
    """``os._exit`` in the user's code ends the process at once; leave word where it was called."""

    def _exit(status: int) -> NoReturn:
        where = blame_frame(sys._getframe(1))
        with suppress(OSError):  # the guest may have closed it
            say(exit={"status": status, "file": where.file if where else None, "line": where.line if where else None})
        leave(status)

    os._exit = _exit
