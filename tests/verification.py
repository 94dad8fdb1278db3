"""Verifications in a process that has DeepSpeed loaded: a case takes about two seconds."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.distributed import environment_of, free_port
from tests.processes import alive, forked, kill

SECONDS = 120.0
HASH_SEEDS = ("0", "1")
"""Of the first rank and of the others, where each must have an order of sets of its own; see ``distributed.order_differs``."""


def verified(
    target: str,
    *,
    patched: bool = False,
    stages: int | None = None,
    partition: str | None = "uniform",
    config: dict[str, Any] | None = None,
    param_groups: str | None = None,
    steps: int = 3,
    timeout: float = 5.0,
    check: dict[str, Any] | None = None,
    release: str | None = None,
    sets: bool = False,
) -> dict[str, Any]:
    """``verify``: the verification of a TARGET, or ``{"error": ...}``; with ``check``, what that says with these options.

    ``release`` is a DeepSpeed other than the installed one. With ``sets``, every rank is started by itself, as a launcher does
    it, and the first one walks over sets in another order than the others.
    """
    with tempfile.TemporaryDirectory(prefix="tiespec-test-") as folder:
        options = {
            "target": target, "setup": None, "input": [], "stages": stages, "data_parallel": 1, "steps": steps,
            "partition": partition, "config": config or {}, "param_groups": param_groups, "patched": patched, "timeout": timeout, "load_timeout": 60.0,
            "folder": folder,
        }  # fmt: skip
        ranks: list[dict[str, str] | None] = [None]
        if sets:
            assert stages is not None
            place = {"WORLD_SIZE": str(stages), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            ranks = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(stages)]
        said = [Path(folder, f"said{i}") for i in range(len(ranks))]
        started: list[int] = []
        try:
            for i, joined in enumerate(ranks):
                request = {"verify": {**options, "joined": joined}, "file": str(said[i])}
                if check is not None and i == 0:
                    request["check"] = check
                environment = environment_of(release, HASH_SEEDS[min(i, 1) :][:1]) if release or sets else {}
                started.append(forked(request, environment, Path(folder, f"output{i}")))
            deadline = time.monotonic() + SECONDS
            while any(map(alive, started)) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for process in started:
                kill(process)
        assert said[0].exists(), f"no answer for {target}: " + Path(folder, "output0").read_text(errors="replace")[-3000:]
        return json.loads(said[0].read_text())
