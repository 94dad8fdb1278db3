"""What is not loaded stays unloaded, and whoever needs it gets the real thing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from deepspeed.runtime import utils

from tests.helpers import ROOT
from tiespec.lean import partitions_asked_once

BEGIN = """
import sys, torch
from torch import nn
from tiespec.lean import without_dynamo
def built():
    with torch.device("meta"):
        return nn.Embedding(4, 4)
"""


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        ("with without_dynamo():\n    built()", False),
        ("built()", True),
        ("with without_dynamo():\n    built()\n    import torch._dynamo.config as c\n    assert c.cache_size_limit", True),
        ("with without_dynamo():\n    built()\n    from torch._dynamo.utils import counters", True),
        ("with without_dynamo():\n    built()\n    torch._dynamo.reset()", True),
        (
            "with without_dynamo():\n    torch.compile(built(), backend='eager')(torch.zeros(2, dtype=torch.long, device='meta'))",
            True,
        ),
        ("with without_dynamo():\n    built()\nbuilt()\ntorch._dynamo.reset()", True),
    ],
)
def test_the_compiler_is_loaded_where_it_is_needed(body: str, loaded: bool) -> None:
    code = f"{BEGIN}\n{body}\nprint('torch._dynamo.eval_frame' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"{loaded}\n", done.stderr


def test_a_partition_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = utils.partition_balanced

    def partition_balanced(weights: list[int], num_parts: int) -> list[int]:
        asked.append(num_parts)
        return original(weights, num_parts)

    monkeypatch.setattr(utils, "partition_balanced", partition_balanced)
    with partitions_asked_once():
        first, second = (utils.partition_balanced(weights=[5, 1, 1, 5], num_parts=2) for _ in range(2))
        first.append(0)  # the caller's own
        assert second == utils.partition_balanced([5, 1, 1, 5], 2) == original([5, 1, 1, 5], 2)
    assert asked == [2]
    assert utils.partition_balanced is partition_balanced
