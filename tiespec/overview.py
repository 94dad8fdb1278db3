"""A pipeline as stages with their layers, parameters and ties, and what each tie costs, as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tiespec.verdict import Finding


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Box(_Data):
    """One layer, or a run of equal layers without a key.

    Args:
        layers: 0-based, consecutive.
        name: class or function, without its module.
        forward_fn: of its TiedLayerSpec.
        key: of its tie.
        parameters: elements of the parameters of all its layers.
        nbytes: of their parameters and buffers.
        codes: of the findings that occur here.
    """

    layers: list[int]
    name: str
    forward_fn: str | None
    key: str | None
    parameters: int
    nbytes: int
    codes: list[str]


class Stage(_Data):
    """One stage.

    Args:
        index: 0-based.
        boxes: its layers, in order.
        parameters: elements on a rank of the stage; the layers of a key in it are one module.
        nbytes: of its parameters and buffers.
        replicated: bytes of tied modules that an earlier stage has, too.
    """

    index: int
    boxes: list[Box]
    parameters: int
    nbytes: int
    replicated: int


class TieCost(_Data):
    """One tie.

    Args:
        key: the key.
        layers: 0-based.
        stages: the stages that hold a copy, 0-based.
        paths: what its list names.
        copied: bytes of the tied module that every stage but the first holds again.
        reduced: bytes of gradients that each of its stages puts into all-reduce in every step.
        codes: of the findings on it.
    """

    key: str
    layers: list[int]
    stages: list[int]
    paths: list[str]
    copied: int
    reduced: int
    codes: list[str]


class Overview(_Data):
    """All of it.

    Args:
        target: as it was loaded.
        layers: how many.
        partition: DeepSpeed's method.
        stages: in order.
        ties: sorted by key.
        findings: of `tiespec check` for this number of stages.
        input: the sample input.
    """

    target: str
    layers: int
    partition: str
    stages: list[Stage]
    ties: list[TieCost]
    findings: list[Finding]
    input: str
