"""The patched PipelineModule on other releases of DeepSpeed, each installed beside the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed import run
from tests.helpers import CASES
from tests.rules.models import EXAMPLES, PARTS
from tests.rules.parts import BF16
from tests.runtime.test_patched import ADAPTER, LOST, RECIPE, STEPS, THREE, ZERO1_SGD, trains_right

Write = Callable[..., str]

RELEASES = ["0.14.5", "0.15.4", "0.16.5", "0.16.6", "0.17.6", "0.18.9", "0.19.8"]
ONE_MICRO_BATCH = {"gradient_accumulation_steps": 1}
"""With more, 0.16.5 to 0.17.6 do not divide the gradients by their number, and 0.18.9 trains more slowly than one process:
the same losses with stock ties as with ours."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", RELEASES)
def test_release(release: str, write: Write) -> None:
    """What stock gets wrong on it is trained right, and comes back: unused at one end, an adapter, three occurrences."""
    for source, stages in ((RECIPE, 2), (ADAPTER, 2), (THREE, 3)):
        file = Path(write(PARTS + source))
        seen = run(
            file, "layers", stages=stages, ds_config=ONE_MICRO_BATCH, steps=STEPS, resume=True, patched=True, release=release
        )
        trains_right(seen, file, "layers")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", RELEASES)
def test_ties_by_parameter_on_a_release(release: str) -> None:
    name, build = "plain_list_shared_parameter", "layers"
    module = {"ties": [LOST[name]]}
    file = CASES / name / "model.py"
    seen = run(file, build, ds_config=ONE_MICRO_BATCH, steps=STEPS, resume=True, patched=True, module=module, release=release)
    trains_right(seen, file, build)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", RELEASES)
def test_low_precision_on_a_release(release: str, write: Write) -> None:
    file = Path(write(PARTS + RECIPE))
    config = {**ONE_MICRO_BATCH, **ZERO1_SGD, **BF16}
    seen = run(file, "layers", ds_config=config, steps=STEPS, resume=True, patched=True, release=release, patience=90)
    trains_right(seen, file, "layers", tolerance=2e-2, relative=1e-2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", RELEASES)
def test_an_error_on_every_rank_of_a_release(release: str, write: Write) -> None:
    (example,) = (e for e in EXAMPLES if e.id == "TIE204 shape")
    seen = run(Path(write(PARTS + example.fails)), "layers", patched=True, release=release)
    assert (seen.outcome, len(seen.errors), len(set(seen.errors.values()))) == ("crash", 2, 1)
    assert seen.errors[0].startswith("TieMismatchError")
