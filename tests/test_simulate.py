"""Simulated ranks: what real ones do; one rank of a stage stands for all; nothing is left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed.comm.comm as ds_comm
import pytest
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule

from tests.distributed import run
from tests.helpers import CASES, tiespec
from tests.rules.models import EXAMPLES, GOOD, PARTS
from tiespec.analyse import analyse_target
from tiespec.parting import Call, Parting, first_parting
from tiespec.simulate import Grid, marking, simulate
from tiespec.simulation import partings

Write = Callable[..., str]


@pytest.mark.parametrize("name", sorted(folder.name for folder in CASES.iterdir()))
def test_ranks_part_where_real_ones_hang(name: str) -> None:
    case = json.loads((CASES / name / "case.json").read_text())
    analysis = analyse_target(str(CASES / name / case["target"]))
    found = partings(analysis, [case["stages"]], case["partition"]) if case["stages"] > 1 else {}
    parted = [p for p in found.values() if isinstance(p, Parting)]
    mixed = [p for p in parted if None not in p.calls and p.calls[0].matches(p.calls[1])]
    assert bool(mixed) == (name == "swapped_order")
    assert bool(parted) == (case["real"]["outcome"] == "hang" or bool(mixed))
    assert bool(found) == (case["real"]["outcome"] in ("hang", "crash") or bool(mixed))
    for p in parted:
        assert p.key == case["expect"]["key"]
        assert any(call is not None and call.path in case["expect"]["paths"] for call in p.calls)


KEYS = """
def layers():
    again = lambda: tie(['linear.weight', 'linear.bias'], None, Block, key='block')
    return [tie(NAMES), again(), LayerSpec(Block), again(), LayerSpec(Block), tie(LAST, logits)]
"""
LISTS = {
    "right": (["word.weight"], ["word.weight"]),
    "unused": (["word.weight", "scale"], ["word.weight", "scale"]),
    "length": (["word.weight", "scale"], ["word.weight"]),
    "order": (["word.weight", "scale"], ["scale", "word.weight"]),
}
GRIDS = [Grid(2, 2, 1), Grid(3, 2, 1), Grid(2, 1, 2), Grid(2, 2, 2), Grid(3, 3, 1)]


def of_grid(analysis: Any, grid: Grid) -> Parting | None:
    def build(topology: Any) -> Any:
        return PipelineModule(layers=list(analysis.loaded.rebuild("meta").value), topology=topology, partition_method="uniform")

    with marking():
        return simulate(grid, build, analysis.usage)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_one_rank_of_a_stage_stands_for_all(grid: Grid, name: str, write: Write) -> None:
    first, last = LISTS[name]
    file = write(PARTS + f"NAMES, LAST = {first}, {last}\n" + KEYS)
    analysis = analyse_target(f"{file}:layers")
    all_ranks, stages = of_grid(analysis, grid), of_grid(analysis, Grid(grid.stages))
    assert (all_ranks is None) == (stages is None) == (name == "right")
    if all_ranks is not None and stages is not None:
        assert all_ranks.phase == stages.phase
        assert [c and (c.operation, c.key, c.path) for c in all_ranks.calls] == [
            c and (c.operation, c.key, c.path) for c in stages.calls
        ]


def test_a_deadlock_across_groups() -> None:
    """Each group agrees with itself; the two ranks visit the groups in opposite order."""
    a, b = Call("broadcast", (0, 1), (2,), "float32", "a", 0, "w"), Call("broadcast", (0, 1, 2), (2,), "float32", "b", 1, "w")
    parted = first_parting({0: [a, b], 1: [b, a], 2: [b]}, "building")
    assert parted is not None
    assert parted.deadlock
    assert "each in the order of the other group" in str(parted)
    assert first_parting({0: [a, b], 1: [a, b], 2: [b]}, "building") is None


def test_two_groups_of_the_same_ranks_are_two() -> None:
    a, b = Call("all_reduce", (0, 1), (2,), number=1), Call("all_reduce", (0, 1), (2,), number=2)
    parted = first_parting({0: [a, b], 1: [b, a]}, "step")
    assert parted is not None
    assert parted.deadlock
    assert first_parting({0: [a, b], 1: [a, b]}, "step") is None


def test_what_belongs_together_is_compared_where_sizes_agree() -> None:
    a, b = (Call("all_reduce", (0, 1), (2,), "float32", "k", 0, path, row) for row, path in enumerate(("v", "w")))
    assert first_parting({0: [a, b], 1: [b, a]}, "step") is None
    parted = first_parting({0: [a, b], 1: [b, a]}, "step", Call.is_of_the_same)
    assert parted is not None
    assert [call and call.path for call in parted.calls] == ["v", "w"]


def test_a_broadcast_may_send_less() -> None:
    small, large = Call("broadcast", (0, 1), (2,), "float32"), Call("broadcast", (0, 1), (2, 3), "float32")
    assert replace(small, sends=True).goes_on(large)
    assert large.goes_on(replace(small, sends=True))
    assert not replace(large, sends=True).goes_on(small)
    assert not replace(small, sends=True).goes_on(replace(large, dtype="float64"))
    assert not replace(small, operation="all_reduce").goes_on(replace(large, operation="all_reduce"))


def test_the_order_of_groups_is_compared() -> None:
    a, b = Call("new_group", (0, 1), (0,)), Call("new_group", (0, 1), (1,))
    parted = first_parting({0: [a, b], 1: [b, a]}, "building")
    assert parted is not None
    assert (parted.first, parted.second) == (0, 1)


TWO_KEYS = """
class Pipe(PipelineModule):
    def __init__(self, **kwargs):
        again = lambda: tie(['linear.weight', 'linear.bias'], None, Block, key='block')
        layers = [tie(['word.weight']), again(), LayerSpec(Block), again(), LayerSpec(Block), tie(['word.weight'], logits)]
        super().__init__(layers=layers, loss_fn=loss_fn, **kwargs)
    def _synchronize_tied_weights(self):
        if self.stage_id == 1:
            self.tied_comms = dict(reversed(self.tied_comms.items()))
        super()._synchronize_tied_weights()
"""


def test_a_buffer_that_changes_does_not_explain_where_ranks_part(write: Write) -> None:
    """Nor is anything reduced where ZeRO-1 hides the gradients."""
    example = next(e for e in EXAMPLES if e.id == "TIE501 mixed")
    reduced = "        return found[self.stage_id :]\n"
    source = PARTS + example.fails.replace("        return found if self.stage_id == 0 else found[::-1]\n", reduced)
    source = source.replace("nn.Embedding(vocabulary, hidden)", "nn.Embedding(vocabulary, hidden, max_norm=0.5)")
    assert _codes(write(source)) == ["TIE304", "TIE501"]
    offload = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    config = {"bf16": {"enabled": True}, "zero_optimization": offload, "data_types": {"grad_accum_dtype": "fp32"}}
    assert _codes(write(source), "--ds-config", write(json.dumps(config), "ds.json")) == ["TIE304", "TIE403"]


def _codes(file: str, *options: str) -> list[str]:
    done = tiespec("check", f"{file}:layers", "--stages", "2", *options, "--format", "json")
    return sorted({finding["code"] for finding in json.loads(done.stdout)["findings"]})


def test_two_keys_in_opposite_order(write: Write) -> None:
    """Seen by the simulation, and on real processes."""
    file = write(PARTS + TWO_KEYS)
    done = tiespec("check", f"{file}:Pipe(num_stages=2, partition_method='uniform')", "--format", "json")
    report = json.loads(done.stdout)
    assert [f["code"] for f in report["findings"]] == ["TIE501"], done.stdout
    assert "rank 0 starts broadcast" in report["findings"][0]["message"]
    seen = run(Path(file), "Pipe")
    assert seen.outcome in ("hang", "crash"), seen.losses


def test_no_simulate(write: Write) -> None:
    example = next(e for e in EXAMPLES if e.id == "TIE501 list by rank")
    file = write(PARTS + example.fails)
    assert tiespec("check", f"{file}:layers", "--stages", "2").returncode == 1
    assert tiespec("check", f"{file}:layers", "--stages", "2", "--no-simulate").returncode == 0


def test_nothing_is_left_behind(write: Write) -> None:
    analysis = analyse_target(write(PARTS + GOOD) + ":layers")
    before, functions = dict(os.environ), (dist.new_group, dist.broadcast, dist.get_rank)
    assert partings(analysis, [2, 3, 4], "uniform") == {}
    assert dict(os.environ) == before
    assert (dist.new_group, dist.broadcast, dist.get_rank) == functions
    assert not dist.is_initialized()
    assert ds_comm.cdb is None


def test_data_parallel_copies_cost_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that are stood for are the stages, whatever --dp and --tp say."""
    import tiespec.simulate as simulating

    stood: list[int] = []
    original = simulating._stand_for

    def counted(rank: int, *others: Any) -> Any:
        stood.append(rank)
        return original(rank, *others)

    monkeypatch.setattr(simulating, "_stand_for", counted)
    from tiespec.checking import Options, check_target

    file = write(PARTS + GOOD) + ":layers"
    for data, tensor in ((1, 1), (16, 8), (128, 8)):
        stood.clear()
        check_target(file, Options(stages=(4,), data_parallel=data, tensor_parallel=tensor))
        assert stood == [0, 1, 2, 3]


ANOTHER_CLASS = """
class Scaled(Embedding):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))
    def forward(self, tokens):
        return super().forward(tokens) + self.shift
def again(module, x):
    return (x + x @ module.word.weight.t() @ module.word.weight) * module.scale + module.shift
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gain, self.offset = nn.Linear(8, 11, bias=False), nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
    def forward(self, x):
        return self.table(x * self.gain + self.offset)
def layers():
    second = tie(["word.weight"], again, Scaled)
    last = tie(["table.weight", "gain", "offset"], None, Head)
    return [tie(["word.weight", "scale", "shift"], None, Scaled), second, LayerSpec(Block), LayerSpec(Block), last]
"""


def test_what_has_no_known_counterpart_is_not_said_to_be_mixed(write: Write) -> None:
    """The second layer has a list of its own, which DeepSpeed does not read: the two ends are paired by position."""
    file = write(PARTS + ANOTHER_CLASS)
    done = tiespec("check", f"{file}:layers", "--stages", "2", "--partition", "uniform", "--format", "json")
    assert json.loads(done.stdout)["findings"] == []
    seen = run(Path(file), "layers")
    assert seen.outcome == "ok"
    assert torch.equal(seen.trained[0, 0]["shift"], seen.trained[1, 4]["offset"])


HEALTHY = """
import torch.distributed as dist
class Pipe(PipelineModule):
    def __init__(self, **kwargs):
        super().__init__(layers=pipeline(tie(['word.weight']), tie(['word.weight'], logits)), loss_fn=loss_fn, **kwargs)
        ends = dist.new_group([0, 2])
        if dist.get_rank(ends) >= 0:
            dist.barrier(group=ends)
        dist.all_reduce(torch.zeros(1), dist.ReduceOp.SUM, ends)
        dist.all_reduce(torch.zeros(1), async_op=True).wait()
    def _synchronize_tied_weights(self):
        for comm in self.tied_comms.values():
            dist.broadcast(comm['module'].word.weight.data, min(comm['ranks']), comm['group'])
"""


def test_a_healthy_subclass_with_groups_of_its_own(write: Write) -> None:
    """Positional groups, ranks that are in no group, and handles; real processes run it."""
    file = write(PARTS + HEALTHY)
    done = tiespec("check", f"{file}:Pipe(num_stages=3, partition_method='uniform')", "--format", "json")
    assert [f["code"] for f in json.loads(done.stdout)["findings"]] == [], done.stdout
    assert not [n for n in json.loads(done.stdout)["notes"] if n["code"] == "TIE501"], done.stdout
    assert run(Path(file), "Pipe", stages=3).outcome == "ok"
