"""The result of ``tiespec check``, as data and as JSON. Loads neither torch nor deepspeed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["error", "warning", "note"]
Consequence = Literal[
    "crash", "hang", "diverge", "wrong-gradient", "wrong-forward", "lost-on-resume", "overwritten", "untrained", "none"
]  # fmt: skip

Outcome = Literal[
    "ok", "refused", "crash", "hang", "overwritten", "untrained", "diverge", "wrong-forward", "wrong-gradient", "lost-on-resume"
]  # fmt: skip
"""What a real run showed: the consequences that can be seen in it, ``ok``, or the patched module's clear error."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fact(_Data):
    """What is the case at one layer.

    Args:
        layer: 0-based.
        stage: 0-based; None where several numbers of stages are looked at.
        text: the fact.
        path: the parameter it is about.
        file, line: where the layer's spec is written.
    """

    layer: int
    stage: int | None
    text: str
    path: str | None
    file: str | None
    line: int | None


class Finding(_Data):
    """A fault.

    Args:
        code, name: of the rule; ``tiespec rule CODE`` explains it.
        severity: how it is counted; a note does not change the exit status.
        consequence: what stock DeepSpeed does.
        message: the fact with names, layers and stages, and what will happen.
        help: what to write instead.
        file, line: where the layer's spec is written.
        key: of the tie.
        layer: 0-based.
        path: the parameter, or the name as it is written.
        stages: the numbers of stages in which it occurs; empty where that does not matter.
        facts: layer by layer.
    """

    code: str
    name: str
    severity: Severity
    consequence: Consequence
    message: str
    help: str
    file: str | None
    line: int | None
    key: str | None
    layer: int | None
    path: str | None
    stages: list[int]
    facts: list[Fact] = Field(default_factory=list)


class Note(_Data):
    """What could not be decided, or was done differently from what one may expect.

    Args:
        code: of the rule that could not decide; None for a note on the target.
        message: what.
        help: what to pass to decide it.
    """

    code: str | None
    message: str
    help: str


class Report(_Data):
    """What ``tiespec check`` says of one target.

    Args:
        target: as it was loaded.
        deepspeed, torch: the releases the verdict is for.
        stages: the numbers of stages that were looked at.
        layers, ties: how many there are; a key that one layer has alone ties nothing.
        keys: all of them, sorted.
        input: the sample input.
        findings: sorted by file, line and code.
        notes: what could not be decided.
    """

    version: Literal[1] = 1
    target: str
    deepspeed: str
    torch: str
    stages: list[int]
    layers: int
    ties: int
    keys: list[str] = Field(default_factory=list)
    input: str
    findings: list[Finding]
    notes: list[Note]

    @property
    def ok(self) -> bool:
        """Whether there is nothing but notes: ``assert tiespec.check(build_layers).ok``."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def codes(self) -> list[str]:
        """The codes of the findings, sorted, each once."""
        return sorted({finding.code for finding in self.findings})

    def to_json(self) -> str:
        """Two-space indent, LF."""
        return self.model_dump_json(indent=2) + "\n"

    def __str__(self) -> str:
        lines = [f"{f.file}:{f.line}: {f.code} {f.message}; {f.help}" for f in self.findings]
        return "\n".join(lines) or f"{self.target}: no problems"
