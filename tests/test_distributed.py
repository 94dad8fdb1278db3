"""The lists, trained for real on two CPU processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed import run, same
from tests.helpers import ROOT, generated

GPT = ROOT / "examples" / "gpt.py"
SMALL = {"vocabulary": 29, "length": 8, "hidden": 16, "heads": 2, "blocks": 2}


def test_the_recipe_list_of_the_example_hangs() -> None:
    seen = run(GPT, "build_layers", SMALL)
    assert seen.outcome == "hang"
    assert seen.built
    assert not seen.trained
    assert not _left(seen)


def test_the_generated_list_of_the_example_trains_and_the_copies_stay_equal() -> None:
    arguments = ", ".join(f"{name}={value}" for name, value in SMALL.items())
    names = generated(f"{GPT}:build_layers({arguments})").spec["embed"]
    seen = run(GPT, "build_layers", {**SMALL, "names": names}, steps=4)
    assert seen.outcome == "ok", seen.output
    assert len(seen.losses) == 4
    assert seen.losses[-1] < seen.losses[0]
    copies = seen.copies([0, 3], "word.weight")
    assert len(copies) == 2
    assert same(copies)
    assert not same(seen.copies([0], "word.weight") + seen.copies([0], "word.weight", "built"))


LAYERS = """
import torch
from torch import nn
from deepspeed.pipe import LayerSpec, TiedLayerSpec

class Table(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.add_module(path, nn.Linear(4, 4))
    def forward(self, x):
        return next(self.children())(x)

def layers(names=None):
    names = names or {"0": ["a.weight"], "2": ["b.weight"]}
    return [
        TiedLayerSpec("e", Table, "a", tied_weight_attr=names["0"]),
        LayerSpec(nn.Linear, 4, 4),
        TiedLayerSpec("e", Table, "b", tied_weight_attr=names["2"]),
    ]

def loss_fn(outputs, labels):
    return (outputs - labels).square().mean()

def example_inputs():
    return torch.randn(2, 4), torch.randn(2, 4)
"""


def test_lists_by_layer_train_right(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(LAYERS)
    by_layer: Any = generated(f"{file}:layers").spec.ties[0].by_layer
    assert by_layer == {"0": ["a.weight", "a.bias"], "2": ["b.weight", "b.bias"]}
    seen = run(file, "layers", {"names": by_layer})
    assert seen.outcome == "ok", seen.output
    for name in ("weight", "bias"):
        assert same([seen.trained[0, 0][f"a.{name}"], seen.trained[1, 2][f"b.{name}"]])


def test_a_run_that_crashes_is_told_from_one_that_hangs(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(LAYERS.replace('"a.weight"]', '"a.wait"]'))
    seen = run(file, "layers")
    assert seen.outcome == "crash"
    assert "'Linear' object has no attribute 'wait'" in seen.errors[0]


@pytest.mark.parametrize("outcome", ["hang", "ok"])
def test_no_process_is_left(outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    loop = "    while True:\n        pass\n" if outcome == "hang" else ""
    file.write_text(LAYERS.replace("def loss_fn(outputs, labels):\n", f"def loss_fn(outputs, labels):\n{loop}"))
    seen = run(file, "layers")
    assert seen.outcome == outcome
    assert not _left(seen)


def _left(seen: Any) -> list[int]:
    return [process for process in seen.processes if (Path("/proc") / str(process)).exists()]
