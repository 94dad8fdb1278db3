"""Forty random pipelines: what `check` says is what stock DeepSpeed does, and the patched module trains them right.

The seed of a case is its number: ``python -m tests.differential --cases 1 --seed 4`` runs case 4000000.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.judge import case, judge, predicted
from tests.differential.source import source

CASES = 40


@pytest.mark.parametrize("seed", range(4_000_000, 4_000_000 + CASES))
def test_case(seed: int, tmp_path: Path) -> None:
    found = judge(case(seed), tmp_path)
    stock = found.details["stock"]
    assert found.agrees, (found.said, found.codes, found.real, found.model.faults, stock["verify"], source(found.model))
    assert found.repaired, (found.patched, found.details["patched"], source(found.model))


def test_what_strikes_first() -> None:
    assert predicted(set()) == ("ok",)
    assert predicted({"diverge", "lost-on-resume"}) == ("diverge",)
    assert predicted({"diverge", "hang", "crash"}) == ("crash", "hang")


def test_a_seed_is_a_case() -> None:
    assert source(case(7)) == source(case(7))
    assert len({source(case(seed)) for seed in range(50)}) > 40
