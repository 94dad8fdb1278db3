"""Which parameter gets a gradient at which layer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import HEAD, generated
from tiespec.analyse import analyse_object, analyse_target
from tiespec.errors import UsageError
from tiespec.inputs import parse_input

Write = Callable[..., str]


def used(*layers: Any, given: str = "float32[2,4]", loss_fn: Any = None, example: Any = None) -> list[set[str]]:
    analysis = analyse_object(list(layers), "test", () if example else (given,), example, loss_fn)
    assert analysis.usage.used is not None, analysis.usage.unknown
    return [set(paths) for paths in analysis.usage.used]


class Two(nn.Module):
    """Uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_unused_parameters() -> None:
    assert used(Two(), nn.Linear(4, 4)) == [{"a.weight", "a.bias"}, {"weight", "bias"}]


def test_functions_between_layers() -> None:
    assert used(lambda x: x * 2, nn.Linear(4, 4), torch.relu) == [set(), {"weight", "bias"}, set()]


def test_tuples_between_layers() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x), torch.arange(4)

    first_only = lambda parts: parts[0]  # noqa: E731
    assert used(Split(), first_only, nn.Linear(4, 4))[0] == {"a.weight", "a.bias"}
    both = lambda parts: parts[0] + parts[1]  # noqa: E731
    assert used(Split(), both)[0] == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_a_layer_that_detaches_stops_the_gradient() -> None:
    assert used(nn.Linear(4, 4), lambda x: x.detach(), nn.Linear(4, 4)) == [set(), set(), {"weight", "bias"}]


def test_a_shared_parameter_is_seen_at_each_layer_by_itself() -> None:
    shared = nn.Linear(4, 4)

    class Use(nn.Module):
        def __init__(self, where: str) -> None:
            super().__init__()
            self.shared, self.where = shared, where

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ getattr(self.shared, self.where) if self.where == "weight" else x + self.shared.bias

    assert used(Use("weight"), Use("bias")) == [{"shared.weight"}, {"shared.bias"}]


def test_a_closure_over_another_layer_is_no_use_of_that_layer() -> None:
    embedding = nn.Linear(4, 4)
    assert used(embedding, lambda x: x @ embedding.weight) == [{"weight", "bias"}, set()]


def test_the_loss_decides_which_outputs_count() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x)

    def loss_fn(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return (outputs[1] - labels).square().mean()

    def example() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(2, 4), torch.ones(2, 4)

    assert used(Heads()) == [{"a.weight", "a.bias", "b.weight", "b.bias"}]
    assert used(Heads(), loss_fn=loss_fn, example=example) == [{"b.weight", "b.bias"}]


def test_frozen_and_no_grad() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert used(frozen, nn.Linear(4, 4)) == [set(), {"weight", "bias"}]
    with torch.no_grad():
        assert used(nn.Linear(4, 4)) == [{"weight", "bias"}]


def test_in_place_and_training_mode_operations() -> None:
    assert used(nn.ReLU(inplace=True), nn.BatchNorm1d(4).eval(), nn.Dropout(0.1)) == [set(), {"weight", "bias"}, set()]


MODEL = (
    HEAD
    + """
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
    def forward(self, x):
        if x.abs().max().item() > 1e9:
            return x
        return x @ self.weight
def build():
    return [TiedLayerSpec('w', Picky), TiedLayerSpec('w', Picky)]
def example_inputs():
    return torch.randn(2, 4), None
"""
)


def test_an_operation_that_refuses_meta_is_tried_for_real(write: Write) -> None:
    made = generated(f"{write(MODEL)}:build")
    assert made.spec["w"] == ["weight"]
    assert made.spec.ties[0].parameters[0].used_by == [0, 1]
    assert any("real tensors on the CPU" in note for note in made.notes)


def test_a_model_over_the_limit_is_not_tried_for_real(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiespec.analyse.REAL_LIMIT", 100)
    analysis = analyse_target(f"{write(MODEL)}:build")
    assert analysis.usage.used is None
    assert "over the limit" in analysis.usage.unknown
    assert "model.py:12" in analysis.usage.unknown


def test_what_does_not_run_is_unknown_and_says_where(write: Write) -> None:
    made = generated(f"{write(MODEL)}:build", given=("float32[2,3]",))
    assert made.spec.ties[0].parameters[0].used_by is None
    assert "is unknown" in made.remarks[0].message
    assert "model.py:14" in made.remarks[0].message
    assert "--input" in made.remarks[0].help


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Embedding(9, 4), nn.Linear(4, 2)], "int64[2, 16]<9"),
        ([nn.Linear(7, 2)], "float32[2, 16, 7]"),
        ([nn.Conv2d(3, 4, 3)], "float32[2, 3, 32, 32]"),
        ([nn.Conv1d(3, 4, 3), nn.ReLU()], "float32[2, 3, 32]"),
        ([lambda x: x, nn.LayerNorm(6)], "float32[2, 16, 6]"),
        ([nn.LSTM(5, 3), lambda pair: pair[0]], "float32[2, 16, 5]"),
    ],
)
def test_derived_input(layers: list[Any], shape: str) -> None:
    usage = analyse_object(layers, "test").usage
    assert usage.source == f"derived from the first layers: {shape}"
    assert usage.used is not None, usage.unknown


def test_no_input_is_known() -> None:
    usage = analyse_object([nn.Identity()], "test").usage
    assert usage.used is None
    assert usage.unknown == "no sample input is known"


@pytest.mark.parametrize("text", ["int64", "int64[2", "foo[2]", "int64[2]<x", "relu[2]", "int64[2]<0", "int64[-1]"])
def test_malformed_input(text: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        parse_input(text)


def test_several_inputs_make_a_tuple() -> None:
    add = lambda pair: pair[0] + pair[1]  # noqa: E731
    usage = analyse_object([add, nn.Linear(4, 4)], "test", ("float32[2,4]", "float32[2, 4]")).usage
    assert usage.used is not None, usage.unknown


def test_what_is_sent_to_an_accelerator_stays_here(write: Write) -> None:
    source = HEAD + (
        "class Layer(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(4, 4, device='cuda'))\n        self.to('cuda:0').cuda()\n"
        "    def forward(self, x):\n        return x.cuda() @ self.weight.to('cuda') + torch.zeros(4, device=torch.device('cuda', 0))\n"
        "layers = lambda: [TiedLayerSpec('e', Layer), TiedLayerSpec('e', Layer)]\n"
    )
    made = generated(f"{write(source)}:layers", given=("float32[2,4]",))
    assert made.spec["e"] == ["weight"]
    assert made.remarks == ()
    assert made.notes == ()


def test_a_use_by_chance_is_no_certain_use() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) if random.random() < 0.5 else self.a(x)  # 0.84 with seed 0, 0.13 with seed 1

    layers = [Dropped()] + [nn.Linear(4, 4)] * 2
    first, second = (analyse_object(layers, "test", ("float32[2,4]",)).usage for _ in range(2))
    assert first == second
    assert first.used is not None
    assert first.used[0] == {"a.weight", "a.bias"}
    assert any(note.startswith("b.bias of layer 0 gets a gradient in one of two runs only") for note in first.notes)


def test_a_loss_that_does_not_run_is_noted(write: Write) -> None:
    source = MODEL.replace("x.abs().max().item() > 1e9", "False") + "def loss_fn(outputs, labels):\n    return outputs.nosuch\n"
    made = generated(f"{write(source.replace('torch.randn(2, 4), None', 'torch.randn(2, 4), torch.ones(2)'))}:build")
    assert made.spec["w"] == ["weight"]
    assert made.remarks == ()
    assert any("loss_fn does not run" in note and "nosuch" in note for note in made.notes)


def test_what_a_model_changes_and_reaches_is_seen() -> None:
    outside = nn.Linear(4, 4)
    embedding = nn.Embedding(5, 4, sparse=True)
    layers = [embedding, nn.BatchNorm1d(4), lambda x: outside(x), lambda x: x @ embedding.weight.t()]
    usage = analyse_object(layers, "test", ("int64[3]<5",)).usage
    assert usage.used is not None, usage.unknown
    assert usage.sparse == {(0, "weight")}
    assert usage.changed == {(1, "running_mean"), (1, "running_var"), (1, "num_batches_tracked")}
    assert {(s.layer, s.owner, s.shape) for s in usage.strays} == {
        (2, None, (4, 4)),
        (2, None, (4,)),
        (3, (0, "weight"), (5, 4)),
    }


def test_a_loss_that_refuses_meta_is_run_for_real(write: Write) -> None:
    """The second output is used by the loss alone, which looks at a value."""
    source = HEAD + (
        "class Heads(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.a(x), self.b(x)\n"
        "layers = lambda: [LayerSpec(Heads)]\n"
        "def loss_fn(outputs, labels):\n    return outputs[0].sum() if labels.sum().item() > 1 else outputs[1].sum()\n"
        "def example_inputs():\n    return torch.ones(2, 4), torch.ones(2)\n"
    )
    usage = analyse_target(f"{write(source)}:layers").usage
    assert usage.used == (frozenset({"a.weight", "a.bias"}),)
    assert any("real tensors on the CPU" in note for note in usage.notes)
