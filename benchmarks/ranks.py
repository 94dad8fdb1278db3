"""The patched PipelineModule beside stock DeepSpeed, in the same two processes, by turns."""

from __future__ import annotations

import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "gradient_clipping": 0.0,
    "steps_per_print": 10**6,
}
MODEL = {"vocabulary": 64, "length": 32, "hidden": 32, "heads": 4, "blocks": 4, "names": ["word.weight"]}
"""A tiny GPT: on anything larger, what the guard costs disappears."""


def patched_against_stock(constructions: int = 15, steps: int = 400) -> dict[str, float]:
    """Medians in seconds, of rank 0: construction and step of both modules, and the handshake within the construction."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.close()
        torch.multiprocessing.spawn(_rank, (port, folder, constructions, steps), nprocs=2)
        return json.loads((Path(folder) / "times").read_text())  # type: ignore[no-any-return]


def _rank(rank: int, port: int, folder: str, constructions: int, steps: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    times = _construction(constructions) | _steps(steps)
    if rank == 0:
        (Path(folder) / "times").write_text(json.dumps(times))
    os._exit(0)


def _classes() -> dict[str, Any]:
    from deepspeed.pipe import PipelineModule

    import tiespec

    return {"stock": PipelineModule, "patched": tiespec.PipelineModule}


def _built(cls: Any) -> Any:
    from examples import gpt

    return cls(layers=gpt.build_layers(**MODEL), num_stages=2, loss_fn=gpt.loss_fn, partition_method="uniform")


def _construction(times: int) -> dict[str, float]:
    classes = _classes()
    handshake: list[float] = []
    inner = classes["patched"]._index_tied_modules

    def timed(self: Any) -> Any:
        start = time.perf_counter()
        found = inner(self)
        handshake.append(time.perf_counter() - start)
        return found

    classes["patched"]._index_tied_modules = timed
    medians = _by_turns({name: lambda cls=cls: _built(cls) for name, cls in classes.items()}, times)  # type: ignore[misc]
    classes["patched"]._index_tied_modules = inner
    return {**{f"construction {name}": m for name, m in medians.items()}, "handshake": statistics.median(handshake)}


def _steps(times: int) -> dict[str, float]:
    import deepspeed

    tokens = torch.randint(0, 64, (2, 33))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def engine(cls: Any) -> Callable[[], Any]:
        made, *_ = deepspeed.initialize(model=_built(cls), config=CONFIG)
        return lambda: made.train_batch(iter([batch] * 2))

    return {f"step {name}": m for name, m in _by_turns({n: engine(c) for n, c in _classes().items()}, times).items()}


def _by_turns(work: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """The median seconds of each, after a tenth of the turns that is not counted; who is first changes each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(times + times // 10):
        for name in list(work) if turn % 2 else reversed(list(work)):
            torch.distributed.barrier()
            start = time.perf_counter()
            work[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[times // 10 :]) for name, taken in seconds.items()}
