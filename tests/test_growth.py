"""How the work grows with the model and the grid: counted, not timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

from tests.helpers import tiespec
from tiespec import sharing
from tiespec.checking import Options, check_target
from tiespec.ties import find_ties

COUNTS = "from collections import Counter\nCOUNTS = Counter()\n"
MODEL = """
import torch
from counts import COUNTS
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn


class Counted(nn.Module):
    def __init__(self, scale):
        super().__init__()
        COUNTS["built"] += 1
        self.inner, self.scale = nn.Linear(4, 4), scale

    def forward(self, x):
        COUNTS["run"] += 1
        return self.inner(x) * self.scale


def build_layers(layers, ties):
    names = ["inner.weight", "inner.bias"]
    ends = [TiedLayerSpec(f"key{i % ties}", Counted, 1, tied_weight_attr=names) for i in range(2 * ties)]
    return ends[:ties] + [LayerSpec(Counted, i % 3) for i in range(layers - 2 * ties)] + ends[ties:]


def example_inputs():
    return torch.randn(2, 4), torch.zeros(2)
"""

Count = Callable[..., Counter[str]]


@pytest.fixture
def work(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Count:
    """What a check does: constructors, forward passes, parameters that are looked at, partitions and constructions."""
    write(COUNTS, "counts.py")
    path = write(MODEL)
    seen: Counter[str] = Counter()
    _count_parameters(seen, monkeypatch)
    for name, counted in (("_partition_layers", "partitions"), ("__init__", "pipelines")):
        _count_calls(PipelineModule, name, counted, seen, monkeypatch)

    def work(layers: int = 16, ties: int = 1, **options: Any) -> Counter[str]:
        seen.clear()
        sys.modules.pop("counts", None)
        report = check_target(f"{path}:build_layers({layers}, {ties})", Options(**{"stages": (2,), **options}))
        assert report.findings == []
        return seen + sys.modules["counts"].COUNTS

    return work


def _count_parameters(seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = nn.Module.named_parameters

    def named_parameters(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for pair in original(*args, **kwargs):
            seen["parameters"] += 1
            yield pair

    monkeypatch.setattr(nn.Module, "named_parameters", named_parameters)


def _count_calls(owner: Any, name: str, counted: str, seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        seen[counted] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def linear(counts: Sequence[Counter[str]]) -> bool:
    """Whether nothing grows faster than the sizes, each of which is twice the one before."""
    first, second, third = counts
    return all(third[name] - second[name] <= 2 * max(0, second[name] - first[name]) for name in third)


def test_counts_are_counted(work: Count) -> None:
    assert set(work()) == {"built", "run", "parameters", "partitions", "pipelines"}


def test_every_layer_is_built_once_and_run_at_most_twice(work: Count) -> None:
    counts = work(layers=24, stages=(2, 4, 8))
    assert counts["built"] == 24
    assert counts["run"] <= 2 * 24


def test_linear_in_layers(work: Count) -> None:
    assert linear([work(layers=n) for n in (8, 16, 32)])


def test_linear_in_ties(work: Count) -> None:
    assert linear([work(layers=32, ties=n) for n in (2, 4, 8)])


@pytest.mark.parametrize("partition", ["uniform", "parameters", "type:counted"])
def test_at_most_linear_in_stages(work: Count, partition: str) -> None:
    counts = [work(layers=32, ties=2, stages=(n,), partition=partition) for n in (4, 8, 16)]
    assert linear(counts)
    assert [count["pipelines"] <= n for count, n in zip(counts, (4, 8, 16), strict=True)] == [True] * 3


def test_the_number_of_ranks_is_in_no_count(work: Count) -> None:
    grids = [(1, 1), (4, 2), (128, 8), (4096, 1)]
    counts = [work(stages=(4,), data_parallel=dp, tensor_parallel=tp) for dp, tp in grids]
    assert all(count == counts[0] for count in counts)


def test_without_simulation_nothing_is_constructed(work: Count) -> None:
    counts = work(stages=(8,), simulate=False)
    assert (counts["partitions"], counts["pipelines"]) == (1, 0)


@pytest.mark.parametrize("tied", [False, True])
def test_slices_of_one_storage_are_compared_with_their_neighbours(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    _count_calls(sharing, "_share", "compared", seen, monkeypatch)
    for count in (100, 200, 400):
        seen.clear()
        assert len(find_ties(_slices(count, tied))) == (count if tied else 0)
        assert seen["compared"] <= count


def _slices(count: int, tied: bool) -> nn.Module:
    flat = torch.zeros(2 * count)
    parts = [flat[2 * i : 2 * i + 2] for i in range(count)]
    return nn.ParameterList([nn.Parameter(part) for part in (parts + parts if tied else parts)])


NEVER = {"IPython", "accelerate", "libcst", "matplotlib", "pandas", "safetensors", "transformers"}
"""What neither DeepSpeed nor a check of layers needs."""
COMMAND_LINE = {"annotated_doc", "shellingham", "tiespec", "typer", "typing_extensions"}
TYPERS = {"annotated_types", "pydantic", "pydantic_core", "typing_inspection"}
"""What typer imports to read the options of a command."""
PYTHONS = {"imported package", "org", "sitecustomize", "usercustomize", *sys.stdlib_module_names}
"""The head of the listing, what Python looks for at its start, and its own library."""


def _imported(*arguments: str) -> set[str]:
    """The modules that a command has imported, in all of its processes."""
    done = tiespec(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def _packages(modules: set[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in modules} - PYTHONS
    return {name for name in tops if not name.startswith("_")}


@pytest.mark.parametrize(("command", "allowed"), [([], COMMAND_LINE), (["check"], COMMAND_LINE | TYPERS)])
def test_help_imports_the_command_line_alone(command: list[str], allowed: set[str]) -> None:
    imported = _imported(*command, "--help")
    assert "typer" in _packages(imported) <= allowed
    own = {name for name in imported if name.startswith("tiespec.") and not name.startswith("tiespec.commands")}
    assert own <= {"tiespec.cli", "tiespec.errors"}


def test_a_check_imports_what_deepspeed_imports(write: Callable[..., str]) -> None:
    write(COUNTS, "counts.py")
    imported = _imported("check", f"{write(MODEL)}:build_layers(8, 1)", "--stages", "2")
    assert {"deepspeed.pipe", "tiespec.checking"} <= imported
    assert not _packages(imported) & NEVER
