"""Has torch and DeepSpeed loaded and forks a rank for every line it reads: a start costs no import."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import deepspeed
import deepspeed.pipe  # noqa: F401
import torch._dynamo  # what an optimizer imports when it is made
import torch.distributed.fsdp  # noqa: F401

import tiespec.checking
import tiespec.verification.verdict  # noqa: F401
from tests.distributed_worker import guarded

LONGEST_SECONDS = 600
"""Then a rank ends, also when whoever started it was killed."""


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that ended are gone, so that their absence can be seen
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _rank(json.loads(line))
        print(json.dumps({"pid": pid}), file=sys.__stdout__, flush=True)


def _rank(started: dict[str, Any]) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.alarm(LONGEST_SECONDS)
    output = os.open(started["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(started["environment"])
    request = started["request"]
    if "verify" in request:
        verified(request)
    guarded(request)


def verified(request: dict[str, Any]) -> NoReturn:
    """A verification, and what `check` says of the same target, as JSON in the request's file."""
    from tiespec.errors import TiespecError, fields_of
    from tiespec.jobs import JOBS

    said: dict[str, Any] = {}
    for job in ("check", "verify"):
        if job in request:
            try:
                said[job] = JOBS[job](request[job], lambda phase: None)
            except TiespecError as error:
                said[job] = {"error": fields_of(error)}
    Path(request["file"]).write_text(json.dumps(said))
    os._exit(0)


if __name__ == "__main__":
    serve()
