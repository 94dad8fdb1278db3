"""Parameters that a process trains outside of its pipeline."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.rules.models import PARTS
from tests.verification import verified
from tiespec.verification.compare import largest
from tiespec.verification.reference import _Layer, _share
from tiespec.verification.strays import outside, untrained
from tiespec.verification.task import Plan

Write = Callable[..., str]


class Probe(nn.Linear):
    """A class that no other test has."""


def names(pipeline: nn.Module, train: Callable[[], None]) -> set[str]:
    before = outside(pipeline)
    train()
    return {name for name, _ in untrained(before) if name.startswith("Probe")}


def test_what_gets_a_gradient_and_is_never_changed() -> None:
    pipeline, probe = nn.Linear(2, 2), Probe(2, 2)
    assert names(pipeline, lambda: probe(torch.ones(1, 2)).sum().backward()) == {"Probe.weight", "Probe.bias"}


def test_what_is_no_stray() -> None:
    """Of the pipeline; with an old gradient alone; of an optimizer; written to; frozen; lazy."""
    probe, lazy = Probe(2, 2), nn.LazyLinear(2)
    assert names(nn.Sequential(probe), lambda: probe(torch.ones(1, 2)).sum().backward()) == set()
    assert names(nn.Linear(2, 2), lambda: None) == set()
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    assert names(nn.Linear(2, 2), lambda: probe(torch.ones(1, 2)).sum().backward()) == set()
    del optimizer
    other = Probe(2, 2)

    def written() -> None:
        other(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter -= 0.1

    assert names(nn.Linear(2, 2), written) == set()
    assert isinstance(lazy.weight, nn.UninitializedParameter)


SMOKE = """
MODEL = nn.Sequential(nn.Embedding(11, 8), Block(), Block(), nn.Linear(8, 11))
MODEL(example_inputs()[0]).sum().backward()
UNUSED = nn.LazyLinear(3)
def layers():
    return list(MODEL)
"""


def test_a_gradient_from_the_import_is_none_from_training(write: Write) -> None:
    """The layers of other stages have it, too. In a stage's own, DeepSpeed adds the first step's gradient to it."""
    found = verified(f"{write(PARTS + SMOKE)}:layers", stages=2)["verify"]
    assert (found["outcome"], found["untrained"]) == ("wrong-gradient", []), found
    cleared = SMOKE.replace("UNUSED", "MODEL.zero_grad()\nUNUSED")
    assert verified(f"{write(PARTS + cleared)}:layers", stages=2)["verify"]["outcome"] == "ok"


def test_the_largest_difference() -> None:
    nan, inf = float("nan"), float("inf")
    assert largest(torch.tensor([1.0, nan, inf]), torch.tensor([1.0, nan, inf])) == 0
    assert largest(torch.tensor([1.0, nan]), torch.tensor([1.5, nan])) == 0.5
    assert largest(torch.tensor([nan]), torch.tensor([1.0])) == inf
    assert largest(torch.ones(2), torch.ones(3)) == inf
    assert largest(torch.ones(0), torch.ones(0)) == 0


def test_rows_and_declared_ties_that_meet_are_one() -> None:
    layers = [_Layer(nn.Linear(2, 2), None, None) for _ in range(3)]
    plan = Plan(
        2, 3, [[(1, "weight"), (2, "weight")]], [[(0, "weight"), (1, "weight")]], [], [], None, [], [], [], False, False, "", []
    )
    shared = _share(layers, plan)
    assert [(0, "weight"), (1, "weight"), (2, "weight")] in [sorted(places) for places in shared]
    assert len({id(layer.module.weight) for layer in layers if layer.module is not None}) == 1
