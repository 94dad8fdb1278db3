"""What is to be verified, as data that processes hand to each other in files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tiespec.dsconfig import parse_ds_config

Place = tuple[int, str]
"""(layer, canonical path) of a parameter."""

LEARNING_RATE = 0.05
"""Of plain SGD. Adam would hide a gradient that is summed twice."""

KEPT = ("bf16", "bfloat16", "fp16", "zero_optimization", "data_types", "communication_data_type", "activation_checkpointing")
"""The sections of a DeepSpeed config that decide what happens to ties."""


@dataclass(frozen=True)
class Task:
    """What to run.

    Args:
        target (str): TARGET.
        folder (str): where the processes write; shared by all of them.
        setup (str | None): ``--setup``.
        input (tuple[str, ...]): ``--input``.
        stages (int | None): pipeline stages; None for the target's own, else 2.
        data_parallel (int): copies of the pipeline.
        partition (str | None): ``partition_method``; None for the target's own.
        config (dict[str, Any]): the user's DeepSpeed config.
        param_groups (str | None): ``FILE.py:function`` from a module to optimizer groups.
        steps (int): training steps, at least 1.
        patched (bool): tiespec's runtime in place of what the user wrote.
    """

    target: str
    folder: str
    setup: str | None = None
    input: tuple[str, ...] = ()
    stages: int | None = None
    data_parallel: int = 1
    partition: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    param_groups: str | None = None
    steps: int = 3
    patched: bool = False


@dataclass(frozen=True)
class Plan:
    """What is known of the target before it is run.

    Args:
        stages (int): pipeline stages.
        layers (int): how many there are.
        rows (list[list[Place]]): parameters that are meant to be one, by key; those that layers share as objects are found
            by the reference itself.
        declared (list[list[Place]]): parameters that the model says are one, and that are neither one object nor of one key.
        apart (list[list[Place]]): parameters that a key joins, and that the model keeps apart.
        reached (list[Place]): parameters of layers that another layer trains through a closure.
        used (list[list[str]] | None): the paths that get a gradient, by layer; None when it is unknown.
        frozen (list[list[str]]): the parameters that are not trained, by layer.
        buffers (list[list[str]]): the buffers that a forward pass changes, by layer.
        proposals (list[dict[str, Any]]): ties by parameter, for the patched module.
        by_order (bool): whether what happens depends on the order in which a rank walks over a set.
        labels (bool): whether the sample has labels, so that the user's loss function can be run.
        source (str): where the sample input comes from.
        notes (list[str]): what was done differently from what one may expect.
    """

    stages: int
    layers: int
    rows: list[list[Place]]
    declared: list[list[Place]]
    apart: list[list[Place]]
    reached: list[Place]
    used: list[list[str]] | None
    frozen: list[list[str]]
    buffers: list[list[str]]
    proposals: list[dict[str, Any]]
    by_order: bool
    labels: bool
    source: str
    notes: list[str]


def write_plan(folder: str, plan: Plan) -> None:
    """Put the plan where the other processes look for it."""
    Path(folder, "plan.json").write_text(json.dumps(asdict(plan)))


def read_plan(folder: str) -> Plan:
    """The plan that ``write_plan`` has written."""
    held = json.loads(Path(folder, "plan.json").read_text())
    for name in ("rows", "declared", "apart"):
        held[name] = [[(int(layer), str(path)) for layer, path in row] for row in held[name]]
    held["reached"] = [(int(layer), str(path)) for layer, path in held["reached"]]
    return Plan(**held)


def precision_of(task: Task) -> Any:
    """The dtype that the config asks for the parameters."""
    import torch

    precision = parse_ds_config(task.config, "the DeepSpeed config").precision
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def config_of(task: Task, batch: int) -> dict[str, Any]:
    """The DeepSpeed config of the run: one micro-batch, plain SGD, no clipping (0.19.8 clips at 1.0 by default).

    With more micro-batches, releases from 0.16.5 to 0.18.9 scale the gradients of a pipeline wrongly, whatever its ties are.
    """
    return {
        **{name: value for name, value in task.config.items() if name in KEPT},
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "SGD", "params": {"lr": LEARNING_RATE}},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
