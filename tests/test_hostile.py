"""Model files that misbehave: exit 2, one message that names the file and line, no traceback of ours, in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import HEAD, tiespec

FILES = {
    "SystemExit": ("import sys\nsys.exit('bye')", 2, "SystemExit('bye')"),
    "os._exit": ("import os\nos._exit(0)", 2, "os._exit(0)"),
    "os._exit in C": ("import ctypes\nctypes.CDLL(None)._exit(7)", None, "status 7"),
    "endless loop": ("while True:\n    pass", (1, 2), "still running after 6 s"),
    "endless loop in C": ("import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", 2, "still running after 6 s"),
    "a signal mask and a sleeping thread": (
        "import signal, threading, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(99,)).start()\nraise ValueError('x')",
        4,
        "ValueError: x",
    ),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", 2, "SIGSEGV"),
    "abort": ("import os\nos.abort()", 2, "SIGABRT"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
    "out of memory": ("import numpy\nblocks = []\nwhile True:\n    blocks.append(numpy.empty(2**30))", 4, "out of memory"),
    "out of memory in torch": ("import torch\nx = torch.ones(10**13)", 2, "out of memory"),
    "recursion": ("def f():\n    f()\nf()", (1, 2, 3), "RecursionError"),
    "missing import": ("import os\nimport megatron_of_nobody.core", 2, "No module named 'megatron_of_nobody'"),
    "syntax error": ("def f(:\n    pass", 1, "SyntaxError"),
    "unreadable text": ("x = 1\ny = '\udcff'", None, "Error"),
    "closed standard streams": ("import os\nfor fd in (0, 1, 2):\n    os.close(fd)\nraise ValueError('x')", 4, "ValueError: x"),
    "every descriptor closed": ("import os\nos.closerange(0, 64)\nos._exit(3)", None, "status 3"),
    "an exception that cannot be shown": (
        "class E(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise E",
        4,
        "E: no message",
    ),
    "an exit hook that hangs": (
        "import atexit, time\natexit.register(time.sleep, 99)\nraise ValueError('x')",
        3,
        "ValueError: x",
    ),
    "a child that outlives": (
        "import subprocess\nsubprocess.Popen(['sleep', '77'])\nraise ValueError('x')",
        3,
        "ValueError: x",
    ),
    "a flood of output": ("print('x' * 10**7)\nraise ValueError('y')", 2, "ValueError: y"),
    "builtins replaced": (
        "import builtins, json, os\nbuiltins.print = json.dumps = os.write = None\nraise ValueError('x')",
        3,
        "ValueError: x",
    ),
}


@pytest.mark.parametrize("way", FILES)
def test_hostile_file(way: str, write: Callable[..., str]) -> None:
    source, line, message = FILES[way]
    file = write("", "model.py")
    with open(file, "w", errors="surrogateescape") as stream:
        stream.write(source)
    started = time.monotonic()
    done = tiespec("generate", f"{file}:build", "--timeout", "6", seconds=60)
    assert time.monotonic() - started < 25
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stdout == ""
    error = done.stderr[-3000:].split("error: ")[-1]
    assert message in error
    assert "Traceback" not in done.stderr
    if line is not None:
        lines = line if isinstance(line, tuple) else (line,)
        assert any(error.startswith(f"{file}:{number}: ") for number in lines), error


def test_nothing_is_written_when_the_file_fails(write: Callable[..., str], tmp_path: Path) -> None:
    file = write("raise ValueError('x')")
    assert tiespec("generate", file, "-o", f"{tmp_path}/tiespec.json").returncode == 2
    assert not (tmp_path / "tiespec.json").exists()


LATER = {
    "in the constructor": (
        "    def __init__(self, *sizes):\n        super().__init__(*sizes)\n        raise ValueError('x')\n",
        "ValueError: x",
    ),
    "exit in the constructor": ("    def __init__(self, *sizes):\n        raise SystemExit(0)\n", "SystemExit(0)"),
    "loop in forward": ("    def forward(self, x):\n        while True:\n            pass\n", "still running after 6 s"),
    "exit in forward": ("    def forward(self, x):\n        import os\n        os._exit(1)\n", "os._exit(1)"),
}


@pytest.mark.parametrize("way", LATER)
def test_hostile_layer(way: str, write: Callable[..., str]) -> None:
    body, message = LATER[way]
    file = write(
        f"{HEAD}class Layer(nn.Linear):\n{body}\nlayers = lambda: [TiedLayerSpec('e', nn.Linear, 4, 4), LayerSpec(Layer, 4, 4)]\n"
    )
    done = tiespec("generate", f"{file}:layers", "--input", "float32[2,4]", "--timeout", "6", seconds=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert f"error: {file}:" in done.stderr
    assert "Traceback" not in done.stderr
