"""The result of ``tiespec verify``, as data and as JSON. Loads neither torch nor deepspeed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tiespec.verdict import Outcome


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Difference(_Data):
    """How far a tensor of a rank is from what it should be.

    Args:
        rank: 0-based.
        layer: 0-based.
        path: of the parameter or buffer.
        largest: the largest difference of an element; 0 when they are equal bit by bit.
        counts: whether it is more than rounding, and the layer uses the parameter.
    """

    rank: int
    layer: int
    path: str
    largest: float
    counts: bool


class Untrained(_Data):
    """A parameter that was given a gradient, and that no optimizer changed.

    Args:
        rank: 0-based.
        name: the class of the module that holds it and its name there; its own class where no module holds it.
        shape: of the parameter.
    """

    rank: int
    name: str
    shape: list[int]


class Waiting(_Data):
    """Where a rank was when the run was ended.

    Args:
        rank, stage: 0-based; the stage is None when the rank had no pipeline yet.
        phase: the last thing it reported.
        operation: the collective it sat in; None when it sat in none.
        asked_by: the method of DeepSpeed that asked for it.
        key, layer, path: the tied parameter it is about, where it is one.
        stack: the file with the stack of all its threads.
    """

    rank: int
    stage: int | None = None
    phase: str
    operation: str | None = None
    asked_by: str | None = None
    key: str | None = None
    layer: int | None = None
    path: str | None = None
    stack: str | None = None


class Verification(_Data):
    """What a real run showed.

    Args:
        target: as it was loaded.
        deepspeed, torch: the releases that ran.
        patched: whether tiespec's PipelineModule ran in place of DeepSpeed's.
        stages, data_parallel, steps: what was run.
        input: the sample input.
        outcome: one word of the rule catalogue; ``ok``; or ``refused``, where the patched module raised its own error.
        errors: rank -> what it raised.
        waiting: where each rank was, for a hang.
        losses, reference_losses: one per step, of the ranks and of one process.
        copies, reference, lost: differences between copies, to the one process, and after loading the checkpoint.
        overwritten: what the first broadcast put in the place of a weight that the model keeps apart.
        untrained: parameters of no layer of the pipeline.
        notes: what was done differently from what one may expect.
        logs: the folder with what each rank has printed; None when it was not needed.
    """

    version: Literal[1] = 1
    target: str
    deepspeed: str
    torch: str
    patched: bool
    stages: int
    data_parallel: int
    steps: int
    input: str
    outcome: Outcome
    errors: dict[int, str] = Field(default_factory=dict)
    waiting: list[Waiting] = Field(default_factory=list)
    losses: list[float] = Field(default_factory=list)
    reference_losses: list[float] = Field(default_factory=list)
    copies: list[Difference] = Field(default_factory=list)
    reference: list[Difference] = Field(default_factory=list)
    lost: list[Difference] = Field(default_factory=list)
    overwritten: list[Difference] = Field(default_factory=list)
    untrained: list[Untrained] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    logs: str | None = None

    def to_json(self) -> str:
        """Two-space indent, LF."""
        return self.model_dump_json(indent=2) + "\n"
