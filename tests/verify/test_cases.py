"""Every case: what real DeepSpeed did with it is what `verify` says; the patched module trains it right or refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers import CASES
from tests.verification import verified

NAMES = sorted(folder.name for folder in CASES.iterdir())
REFUSED = {"key_with_dot", "misspelled_key", "path_is_submodule", "path_typo"}


def said(name: str, patched: bool) -> dict[str, Any]:
    case = json.loads((CASES / name / "case.json").read_text())
    target = str(CASES / name / case["target"])
    return verified(target, patched=patched, stages=case["stages"], partition=case["partition"])["verify"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_stock(name: str) -> None:
    case = json.loads((CASES / name / "case.json").read_text())
    found = said(name, patched=False)
    assert found["outcome"] == case["real"]["outcome"], found


@pytest.mark.parametrize("name", NAMES)
def test_patched(name: str) -> None:
    found = said(name, patched=True)
    assert found["outcome"] == ("refused" if name in REFUSED else "ok"), found
    if found["outcome"] == "refused":
        assert len(set(found["errors"].values())) == 1
        assert len(found["errors"]) == found["stages"]
