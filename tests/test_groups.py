"""Optimizer groups: what the training script's function may give, stage by stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rules.models import PARTS
from tests.rules.test_rules import checked, shown

Write = Callable[..., str]
ZERO1 = {"zero_optimization": {"stage": 1}}
FUNCTIONS = """
def layers():
    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))
def plain(module):
    return [p for p in module.parameters() if p.requires_grad]
def generator(module):
    return (p for p in module.parameters())
def by_type(module):
    words = [p for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]
    return [{"params": words}, {"params": (p for p in module.parameters() if all(p is not w for w in words)), "weight_decay": 0.1}]
def one_by_one(module):
    return [{"params": p} for p in module.parameters()]
def of_the_first(module):
    return [{"params": list(getattr(module, "0").parameters())}]
"""


@pytest.mark.parametrize(
    ("function", "codes"), [("plain", []), ("generator", []), ("by_type", ["TIE307"]), ("one_by_one", ["TIE307"])]
)
def test_groups_are_counted_as_deepspeed_counts_them(function: str, codes: list[str], write: Write) -> None:
    """Plain parameters are one group, and groups without parameters are none."""
    file = write(PARTS + FUNCTIONS)
    report = checked(file, {"ds_config": ZERO1, "stages": 2, "param_groups": f"{file}:{function}"})
    assert report.codes == codes, shown(report)
    assert checked(file, {"stages": 2, "param_groups": f"{file}:{function}"}).codes == []


def test_what_is_no_group_is_said(write: Write) -> None:
    file = write(PARTS + FUNCTIONS + 'def wrong(module):\n    return [{"lr": 1.0}]\n')
    report = checked(file, {"ds_config": ZERO1, "param_groups": f"{file}:wrong"})
    assert "no parameter groups" in report.notes[0].message


def test_a_function_that_fails_for_a_stage_is_a_note(write: Write) -> None:
    file = write(PARTS + FUNCTIONS)
    report = checked(file, {"ds_config": ZERO1, "stages": 2, "param_groups": f"{file}:of_the_first"})
    assert report.codes == []
    assert [note.code for note in report.notes] == ["TIE307"]
    assert "unknown" in report.notes[0].message
