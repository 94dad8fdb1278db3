"""What a run shows beside the fate of the copies: overwritten and untrained weights, optimizer groups, declared ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.rank_faults import orders_differ
from tests.rules.models import EXAMPLES, PARTS, Example
from tests.verification import verified
from tiespec.report.verification import verification_text
from tiespec.verification.outcome import Verification

Write = Callable[..., str]
INTENT = [example for example in EXAMPLES if example.code in ("TIE304", "TIE305", "TIE306", "TIE307", "TIE308")]
SET = """
class Scaled(Embedding):
    def __init__(self):
        super().__init__()
        self.FIRST, self.SECOND = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
    def forward(self, x):
        return super().forward(x) * self.FIRST + self.SECOND
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.FIRST, self.SECOND, self.out = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8)), nn.Linear(8, 11)
    def forward(self, x):
        return self.out(x * self.FIRST + self.SECOND)
NAMES = {"FIRST", "SECOND"}
def layers():
    return pipeline(tie(NAMES, None, Scaled), tie(NAMES, None, Head))
"""
CLOSURE = (
    "KEPT = nn.LayerNorm(8)\n"
    "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), KEPT, LayerSpec(nn.Linear, 8, 11), lambda x: x * KEPT.weight.mean()]\n"
)


def run(source: str, write: Write, patched: bool = False, config: dict[str, Any] | None = None) -> dict[str, Any]:
    file = write(PARTS + source)
    groups = f"{file}:parameter_groups" if "parameter_groups" in source else None
    found = verified(f"{file}:layers", patched=patched, stages=2, param_groups=groups, config=config)["verify"]
    assert "error" not in found, found
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("example", INTENT, ids=lambda e: e.id)
def test_what_the_model_means(example: Example, write: Write) -> None:
    found = run(example.fails, write, config=example.options.get("ds_config"))
    assert found["outcome"] == example.consequence, found
    assert run(example.passes, write, config=example.passing.get("ds_config"))["outcome"] == "ok"


def test_an_overwritten_weight_is_named_with_the_patched_module_too(write: Write) -> None:
    example = next(e for e in INTENT if e.code == "TIE306")
    found = run(example.fails, write, patched=True)
    assert [(d["rank"], d["layer"], d["path"]) for d in found["overwritten"]] == [(1, 3, "part.weight")]
    text = verification_text(Verification.model_validate(found))
    assert "outcome: overwritten" in text
    assert "overwritten when the pipeline was built:\n    layer 3 part.weight on rank 1: by up to" in text


def test_an_untrained_weight_is_named(write: Write) -> None:
    example = next(e for e in INTENT if e.code == "TIE308")
    found = run(example.fails, write)
    assert {(u["rank"], u["name"], tuple(u["shape"])) for u in found["untrained"]} == {
        (1, "Linear.weight", (11, 8)),
        (1, "Linear.bias", (11,)),
    }
    assert "never changed: Linear.weight [11, 8] on rank 1" in verification_text(Verification.model_validate(found))


def test_a_set_is_walked_in_one_order_here_and_in_others_under_a_launcher(write: Write) -> None:
    names = next(pair for i in range(20) if orders_differ(pair := (f"scale{i}", f"shift{i}")))
    file = write(PARTS + SET.replace("FIRST", names[0]).replace("SECOND", names[1]))
    here = verified(f"{file}:layers", stages=2)["verify"]
    assert (here["outcome"], ["order of a set" in note for note in here["notes"]]) == ("ok", [True]), here
    launched = verified(f"{file}:layers", stages=2, sets=True)["verify"]
    assert (launched["outcome"], launched["notes"]) == ("diverge", []), launched


def test_a_layer_that_is_reached_from_another_stage_is_a_copy(write: Write) -> None:
    found = run(CLOSURE, write)
    assert (found["outcome"], found["untrained"]) == ("diverge", []), found
    assert ("weight", 1) in {(d["path"], d["layer"]) for d in found["copies"] if d["counts"]}
