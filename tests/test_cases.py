"""Every case loads, and the lists that are generated are the ones that train right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers import CASES, generated, lists

NAMES = sorted(folder.name for folder in CASES.iterdir())


def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / name / "case.json").read_text())


def test_there_are_cases() -> None:
    assert len(NAMES) >= 18


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    expected = case(name)
    file, _, expression = expected["target"].partition(":")
    made = generated(f"{CASES / name / file}:{expression}")
    assert made.layers > 1
    found = lists(made.spec)
    for key, names in (expected["generate"] or {}).items():
        assert key in found
        if names is not None:
            assert found[key] == names


@pytest.mark.parametrize("name", NAMES)
def test_the_one_candidate_of_a_case_is_picked(name: str) -> None:
    expected = case(name)["target"].partition(":")[2].partition("(")[0]
    assert generated(str(CASES / name / "model.py")).spec.target.endswith(f"model.py:{expected}")
