"""The installed DeepSpeed under simulated ranks: what each of them would communicate, and where two of them part.

One process stands for every rank in turn, under torch's fake process group. DeepSpeed's own ``PipelineModule`` (or the user's
subclass) is constructed on meta; process groups and collectives are written down and not started.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from tiespec.elsewhere import on_device
from tiespec.parting import Call, End, Parting, Trace, first_parting
from tiespec.recorder import fake_process_group, replaced
from tiespec.state import random_state_kept
from tiespec.usage import Usage

OPERATIONS = ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list", "reduce")

Traces = dict[int, Trace]
"""By rank."""
Rows = Mapping[tuple[int, str], int]
"""(layer, path) -> a number that is equal for the parameters of a key that belong together."""
Build = Callable[[Any], PipelineModule]
"""A topology -> the pipeline of the rank that the process stands for."""


@dataclass(frozen=True)
class Grid:
    """Ranks by pipeline, data and tensor coordinate; ``stages`` alone is enough where the others do alike."""

    stages: int
    data: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        """How many."""
        return self.stages * self.data * self.tensor

    def topology(self) -> Any:
        """DeepSpeed's."""
        from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology

        if self.tensor > 1:
            return PipeModelDataParallelTopology(num_pp=self.stages, num_mp=self.tensor, num_dp=self.data)
        return PipeDataParallelTopology(num_pp=self.stages, num_dp=self.data)


@dataclass
class _Recorder:
    rank: int
    ranks: int
    building: Trace = field(default_factory=list)
    step: Trace = field(default_factory=list)
    phase: str = "building"
    pipeline: Any = None
    rows: Rows = field(default_factory=dict)
    groups: int = 0

    def add(self, call: Call) -> None:
        getattr(self, self.phase).append(call)


class _Group(tuple[int, ...]):
    """A process group that was asked for: its ranks, and its number."""

    number = 0


def simulate(grid: Grid, build: Build, usage: Usage, rows: Rows = {}) -> Parting | None:
    """Where the ranks of a grid part; None where they do not.

    Args:
        grid (Grid): the ranks.
        build (Build): constructs the pipeline of the current rank.
        usage (Usage): which parameters get a gradient; where it is unknown, all.
        rows (Rows): which parameters belong together.

    Raises:
        Exception: whatever the construction raises, on the first rank on which it does.
    """
    recorders = [_stand_for(rank, grid, build, usage, rows) for rank in range(grid.ranks)]
    building, step = {r.rank: r.building for r in recorders}, {r.rank: r.step for r in recorders}
    for match in (Call.matches, Call.is_of_the_same):
        parted = first_parting(building, "building", match) or first_parting(step, "step", match)
        if parted is not None:
            return replace(parted, ends=_end(building, step))
    return None


def _end(building: Traces, step: Traces) -> End:
    """What ranks that part come to: where sizes fit they go on, with another parameter than was meant."""
    parted = first_parting(building, "building", Call.goes_on) or first_parting(step, "step", Call.goes_on)
    if parted is None:
        return "diverge"
    one, two = parted.calls
    return "crash" if one is not None and two is not None and one.operation != "new_group" and one.meets(two) else "hang"


def _stand_for(rank: int, grid: Grid, build: Build, usage: Usage, rows: Rows) -> _Recorder:
    recorder = _Recorder(rank, grid.ranks, rows=rows)
    with ExitStack() as stack:
        stack.enter_context(as_rank(rank, grid.ranks))
        stack.enter_context(random_state_kept())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(_started(rank, grid.ranks))
        stack.enter_context(_recorded(recorder))
        stack.enter_context(replaced(nn.Module, "to", lambda module, *args, **kwargs: module))
        stack.enter_context(on_device("meta"))
        pipeline = recorder.pipeline = build(grid.topology())
        recorder.phase = "step"
        _reduce_ties(pipeline, usage)
    return recorder


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """The environment as a launcher sets it for a rank."""
    before = dict(os.environ)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _started(rank: int, ranks: int) -> Iterator[None]:
    import deepspeed

    with fake_process_group():
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        yield


@contextmanager
def _recorded(recorder: _Recorder) -> Iterator[None]:
    """Groups and collectives are written down; what is asked about a group is answered from its ranks."""
    world = _Group(range(recorder.ranks))

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> _Group:
        members = _Group(world if ranks is None else sorted(ranks))
        recorder.groups += 1
        members.number = recorder.groups
        recorder.add(Call("new_group", world, shape=tuple(members)))
        return members

    def collective(name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(dist, name))

        def record(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind_partial(*args, **kwargs).arguments
            members = _members(given.get("group"), world)
            if recorder.rank in members:  # for the others torch does nothing
                tensor = next((a for a in given.values() if isinstance(a, torch.Tensor)), None)
                recorder.add(replace(_call(name, members, tensor, recorder), sends=given.get("src") == recorder.rank))
                _answer(name, given, len(members))
            return _Done() if given.get("async_op") else None

        return record

    with ExitStack() as stack:
        stack.enter_context(replaced(dist, "new_group", new_group))
        stack.enter_context(replaced(dist, "get_rank", lambda group=None: _index(group, recorder.rank)))
        stack.enter_context(
            replaced(dist, "get_world_size", lambda group=None: len(group if isinstance(group, _Group) else world))
        )
        for name in OPERATIONS:
            stack.enter_context(replaced(dist, name, collective(name)))
        yield


def _members(group: Any, world: _Group) -> _Group:
    return group if isinstance(group, _Group) else world


class _Done:
    """The handle of a collective that was not started."""

    def wait(self, *args: Any) -> None:
        """There is nothing to wait for."""


def _answer(name: str, given: Mapping[str, Any], members: int) -> None:
    """Every other member says what this one says, where objects are gathered."""
    if name == "all_gather_object":
        given["object_list"][:] = [given["obj"]] * members


def _index(group: Any, rank: int) -> int:
    if not isinstance(group, _Group):
        return rank
    return group.index(rank) if rank in group else -1


def _call(name: str, group: _Group, tensor: torch.Tensor | None, recorder: _Recorder) -> Call:
    if tensor is None:
        return Call(name, group, number=group.number)
    key, layer, path = _named(tensor)
    row = recorder.rows.get((layer, path)) if layer is not None and path is not None else None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Call(name, group, tuple(tensor.shape), dtype, key, layer, path, row, group.number)


def _named(tensor: torch.Tensor) -> tuple[str | None, int | None, str | None]:
    """Key, layer and path, which ``_mark`` and ``_marking`` have left on the parameters."""
    return getattr(tensor, "_tiespec_named", (None, None, None))


def _mark(pipeline: Any) -> None:
    """Leave on every tied parameter of a stage what it is called."""
    specs = list(enumerate(pipeline._layer_specs[pipeline._local_start : pipeline._local_stop], pipeline._local_start))
    for key, module in pipeline.tied_modules.items():
        layer = next((i for i, spec in specs if isinstance(spec, TiedLayerSpec) and spec.key == key), None)
        for path, parameter in module.named_parameters():
            parameter._tiespec_named = (str(key), layer, path)


@contextmanager
def marking() -> Iterator[None]:
    """Parameters have their names before the first broadcast of a construction."""
    original = PipelineModule._index_tied_modules

    def _index_tied_modules(self: Any) -> Any:
        _mark(self)
        return original(self)

    with replaced(PipelineModule, "_index_tied_modules", _index_tied_modules):
        yield


def _reduce_ties(pipeline: Any, usage: Usage) -> None:
    """The tie reduction of a step, by the engine's own method, with the gradients that the usage says there are."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    held = range(pipeline._local_start, pipeline._local_stop)
    for key, module in pipeline.tied_modules.items():
        layers = [i for i in held if getattr(pipeline._layer_specs[i], "key", None) == key]
        for path, parameter in module.named_parameters():
            used = usage.used is None or any(path in usage.used[i] for i in layers)
            parameter.grad = _gradient(parameter) if used and parameter.requires_grad else None
    stand_in = SimpleNamespace(
        module=pipeline, using_bf16_optimizer=False, zero_optimization_partition_gradients=lambda: False
    )  # fmt: skip
    PipelineEngine._exec_reduce_tied_grads(stand_in)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    gradient = torch.empty_like(parameter, requires_grad=False)
    gradient._tiespec_named = _named(parameter)  # type: ignore[attr-defined]
    return gradient


@contextmanager
def built_once(modules: Mapping[int, nn.Module]) -> Iterator[None]:
    """Specs whose module is there already give it, and build none: ``id`` of a spec -> its module."""
    original = LayerSpec.build

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        return modules[id(self)] if id(self) in modules else original(self, *args, **kwargs)

    with replaced(LayerSpec, "build", build):
        yield
