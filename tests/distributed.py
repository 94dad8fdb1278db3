"""Real DeepSpeed on real processes: start them, wait with a limit, kill what is left, read what every rank reported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.processes import alive, forked, fresh, kill

RELEASES = Path(__file__).parent.parent / ".releases"
WORKER = Path(__file__).with_name("distributed_worker.py")
DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "gradient_clipping": 0.0,
}
BUILD_SECONDS = 120.0
"""Until every rank has joined the process group; the first run of a machine compiles DeepSpeed's extension."""
STEP_SECONDS = 6.0
"""Without news from any rank after that, the run hangs."""
GRACE_SECONDS = 2.0
"""What the other ranks have to report their own error, after the first one."""


@dataclass
class Run:
    """What a run showed.

    ``outcome`` is ``ok`` (every rank reported the end), ``crash`` (a rank raised) or ``hang`` (no news in time).
    ``built``, ``trained`` and ``resumed`` map (rank, layer) to the layer's tensors at construction, after training, and
    after loading the checkpoint that was written after training into a pipeline that was built with other seeds.
    """

    outcome: str
    errors: dict[int, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    built: dict[tuple[int, int], dict[str, torch.Tensor]] = field(default_factory=dict)
    trained: dict[tuple[int, int], dict[str, torch.Tensor]] = field(default_factory=dict)
    resumed: dict[tuple[int, int], dict[str, torch.Tensor]] = field(default_factory=dict)
    output: str = ""
    processes: list[int] = field(default_factory=list)

    def copies(self, layers: list[int], path: str, when: str = "trained") -> list[torch.Tensor]:
        """The copies of a parameter, one per (rank, layer)."""
        held = getattr(self, when)
        return [tensors[path] for (_, layer), tensors in sorted(held.items()) if layer in layers]


def same(tensors: list[torch.Tensor]) -> bool:
    """Whether all tensors are equal, bit by bit."""
    return all(torch.equal(tensors[0], other) for other in tensors[1:])


def run(
    file: Path,
    build: str,
    arguments: dict[str, Any] | None = None,
    stages: int = 2,
    data_parallel: int = 1,
    partition: str = "uniform",
    ds_config: dict[str, Any] | None = None,
    steps: int = 2,
    resume: bool = False,
    load: dict[str, Any] | None = None,
    compile_backend: str = "",
    same_seed: bool = False,
    release: str | None = None,
    hash_seeds: Sequence[str] = (),
    patched: bool = False,
    module: dict[str, Any] | None = None,
    patience: float = STEP_SECONDS,
) -> Run:
    """Train ``build(**arguments)`` of a file on ``stages * data_parallel`` processes.

    ``build`` may return a list of layers or be a PipelineModule subclass. ``release`` is a DeepSpeed other than the
    installed one; ``load`` holds further arguments of ``load_checkpoint``; ``hash_seeds`` gives each rank its PYTHONHASHSEED; ``patched`` uses tiespec's PipelineModule, and
    ``module`` holds further arguments of its constructor. Without news for ``patience`` seconds the run hangs; an
    optimizer that DeepSpeed compiles first needs more.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "file": str(file), "build": build, "arguments": arguments or {}, "stages": stages, "partition": partition,
            "ds_config": {**DS_CONFIG, **(ds_config or {})}, "steps": steps, "resume": resume, "load": load or {}, "folder": folder,
            "same_seed": same_seed, "patched": patched, "module": module or {},
            "compile_backend": compile_backend,
        }  # fmt: skip
        ranks, port = range(stages * data_parallel), free_port()
        extra = [environment_of(release, hash_seeds[rank : rank + 1]) for rank in ranks]
        processes: list[int] = []
        try:
            processes += [_start(request, rank, len(ranks), port, extra[rank]) for rank in ranks]
            finished = _wait(processes, Path(folder), patience)
        finally:
            for process in processes:
                kill(process)
        seen = _read(Path(folder), finished, len(ranks))
        seen.processes = processes
        return seen


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment_of(release: str | None, hash_seed: Sequence[str] = ()) -> dict[str, str]:
    """What a rank's environment must have for a release of DeepSpeed, and for an order of sets."""
    environment = dict(zip(("PYTHONHASHSEED",), hash_seed, strict=False))
    environment["PYTHONPATH"] = str(WORKER.parent.parent)
    if release is not None:
        folder = installed(release)
        environment |= {
            "PYTHONPATH": f"{folder}{os.pathsep}{WORKER.parent.parent}",
            "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # before 0.16 DeepSpeed did not ask torch 2.6 for its own classes
        }
    return environment


def installed(release: str) -> Path:
    """The folder that holds a release of DeepSpeed beside the environment; installed from the registry once."""
    folder = RELEASES / f"deepspeed-{release}"
    if not (folder / "deepspeed" / "__init__.py").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            f"deepspeed=={release}",
        ]
        subprocess.run(command, check=True, timeout=300)
    return folder


def order_differs(names: Sequence[str]) -> list[str]:
    """Two values of PYTHONHASHSEED under which a set of these names is walked in different orders."""
    seen: dict[str, str] = {}
    for seed in map(str, range(50)):
        code = f"print(list(set({list(names)!r})))"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        order = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout
        seen.setdefault(order, seed)
        if len(seen) == 2:
            return list(seen.values())
    raise AssertionError(f"{names} were walked in one order under fifty seeds")


def _start(request: dict[str, Any], rank: int, world_size: int, port: int, extra: dict[str, str]) -> int:
    """Start a rank, in a session of its own; its process id. Only a hash seed wants an interpreter of its own."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    environment = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **extra}
    output = Path(request["folder"]) / f"output{rank}"
    if "PYTHONHASHSEED" in extra:
        return fresh([sys.executable, str(WORKER), json.dumps(request)], environment, output)
    return forked(request, environment, output)


def _wait(processes: list[int], folder: Path, patience: float) -> bool:
    """True when every rank ended by itself or one has failed; False when there was no news in time."""
    news, since, limit, failed = -1, time.monotonic(), BUILD_SECONDS, False
    while any(map(alive, processes)):
        reports = _reports(folder, len(processes))
        if failed and time.monotonic() - since > GRACE_SECONDS:
            return True  # the others wait for a peer that is gone
        failed = any("error" in line for lines in reports for line in lines)
        if sum(map(len, reports)) != news:
            news, since = sum(map(len, reports)), time.monotonic()
            limit = patience if all(reports) else BUILD_SECONDS
        if time.monotonic() - since > limit:
            return False
        time.sleep(0.05)
    return True


def _reports(folder: Path, world_size: int) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    for rank in range(world_size):
        file = folder / f"report{rank}"
        lines = file.read_text().splitlines() if file.exists() else []
        found.append([json.loads(line) for line in lines if line.endswith("}")])
    return found


def _read(folder: Path, finished: bool, world_size: int) -> Run:
    reports = _reports(folder, world_size)
    errors = {rank: line["error"] for rank, lines in enumerate(reports) for line in lines if "error" in line}
    ended = all(any("end" in line for line in lines) for lines in reports)
    output = "\n".join((folder / f"output{rank}").read_text(errors="replace") for rank in range(world_size))
    run = Run("ok" if ended else "hang" if not finished else "crash", errors, output=output)
    run.losses = [line["loss"] for line in reports[0] if "loss" in line]
    for rank in range(world_size):
        for when in ("built", "trained", "resumed"):
            file = folder / f"{when}{rank}.pt"
            if file.exists():
                held = torch.load(file, weights_only=True)
                getattr(run, when).update({(rank, layer): tensors for layer, tensors in held.items()})
    return run
