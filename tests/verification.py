"""Verifications in a process that has DeepSpeed loaded: a case takes about two seconds."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.processes import alive, forked, kill

SECONDS = 120.0


def verified(
    target: str,
    *,
    patched: bool = False,
    stages: int | None = None,
    partition: str | None = "uniform",
    config: dict[str, Any] | None = None,
    steps: int = 3,
    timeout: float = 5.0,
    check: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """``verify``: the verification of a TARGET, or ``{"error": ...}``; with ``check``, what that says with these options."""
    with tempfile.TemporaryDirectory(prefix="tiespec-test-") as folder:
        options = {
            "target": target, "setup": None, "input": [], "stages": stages, "data_parallel": 1, "steps": steps,
            "partition": partition, "config": config or {}, "patched": patched, "timeout": timeout, "load_timeout": 60.0,
            "folder": folder, "joined": None,
        }  # fmt: skip
        request = {"verify": options, "file": str(Path(folder, "said")), **({"check": check} if check is not None else {})}
        process = forked(request, {}, Path(folder, "output"))
        deadline = time.monotonic() + SECONDS
        try:
            while alive(process) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            kill(process)
        said = Path(folder, "said")
        assert said.exists(), f"no answer for {target}: " + Path(folder, "output").read_text(errors="replace")[-3000:]
        return json.loads(said.read_text())
