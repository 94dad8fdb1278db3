"""Processes of a distributed test: forked from one that has DeepSpeed loaded, or fresh; watched and killed by their number."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ALWAYS = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
_one_at_a_time = threading.Lock()
_fresh: dict[int, subprocess.Popen[bytes]] = {}


def forked(request: dict[str, Any], environment: dict[str, str], output: Path) -> int:
    """A rank that starts without an import; the server is another one for each DeepSpeed and each order of sets."""
    where = {
        name: environment[name] for name in ("PYTHONPATH", "TORCH_EXTENSIONS_DIR", "PYTHONHASHSEED") if name in environment
    }
    started = json.dumps({"request": request, "environment": environment, "output": str(output)})
    with _one_at_a_time:
        server = _server(tuple(where.items()))
        assert server.stdin is not None
        assert server.stdout is not None
        print(started, file=server.stdin, flush=True)
        for line in server.stdout:  # DeepSpeed prints while it is imported
            if line.startswith('{"pid"'):
                return int(json.loads(line)["pid"])
    raise RuntimeError(f"the server of ranks ended with {server.wait()}")


@functools.cache
def _server(where: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ALWAYS, "PYTHONHASHSEED": "0", **dict(where)},
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )
    atexit.register(server.kill)
    return server


def fresh(command: list[str], environment: dict[str, str], output: Path) -> int:
    """A process with an interpreter of its own."""
    with open(output, "wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ALWAYS, **environment},
            start_new_session=True,
        )
    _fresh[process.pid] = process
    return process.pid


def alive(process: int) -> bool:
    """Whether a process is there and has not ended."""
    if process in _fresh:
        return _fresh[process].poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def kill(process: int) -> None:
    """End a process and those it started; return when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    while alive(process):
        time.sleep(0.01)
