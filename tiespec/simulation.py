"""An analysed target under simulated ranks, for the cuts that are asked for."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from tiespec.analyse import Analysis
from tiespec.blame import blame_exception
from tiespec.guest import text_of
from tiespec.lean import partitions_asked_once
from tiespec.pairing import pair
from tiespec.parting import Parting
from tiespec.pipeline import Parameter, Pipeline
from tiespec.simulate import Build, Grid, Rows, as_rank, built_once, marking, simulate
from tiespec.target import Loaded
from tiespec.trace import runnable

Found = Parting | str
"""Where ranks part; or why that could not be simulated."""


def partings(analysis: Analysis, counts: Sequence[int], partition: str | None, hidden: bool = False) -> dict[int, Found]:
    """Number of stages -> where its ranks part; counts at which they do not are absent.

    Data-parallel copies and tensor-parallel ranks do as their stage does, so one rank stands for each stage.

    Args:
        analysis (Analysis): the target.
        counts (Sequence[int]): numbers of stages, above 1.
        partition (str | None): DeepSpeed's ``partition_method``; None for the target's own.
        hidden (bool): whether the reduction of a step finds no gradient on any rank (``DsConfig.hides_gradients``).
    """
    loaded = analysis.loaded
    if hidden:
        analysis = replace(analysis, usage=replace(analysis.usage, used=(frozenset(),) * len(analysis.pipeline.layers)))
    if loaded is None or any(layer.unbuilt is not None for layer in analysis.pipeline.layers):
        return {}
    found: dict[int, Found] = {}
    for stages in counts:
        method = partition or analysis.pipeline.partition
        try:
            parted = _parting(analysis, loaded, stages, method)
        except Exception as error:  # the user's class raises whatever it likes; other rules say what crashes
            where = blame_exception(error)
            found[stages] = f"{f'{where.file}:{where.line}: ' if where else ''}{type(error).__name__}: {text_of(error)}"
        else:
            if parted is not None:
                found[stages] = parted
    return found


def _parting(analysis: Analysis, loaded: Loaded, stages: int, method: str) -> Parting | None:
    modules = [layer.module for layer in runnable(analysis.live, "meta", analysis.owned)]
    first = _items(loaded)
    last = _items_of_rank(loaded, stages - 1, stages)
    others = last if _lists(last) != _lists(first) else first
    ready = {id(spec): m for spec, m in zip(first, modules, strict=True) if isinstance(spec, LayerSpec) and m is not None}
    with built_once(ready), marking(), partitions_asked_once():
        build = _build(loaded, first, others, modules, method, stages)
        return simulate(Grid(stages), build, analysis.usage, _rows(analysis.pipeline))


def _rows(pipeline: Pipeline) -> Rows:
    """Of the parameters that the layers of each key list."""
    found: list[dict[int, Parameter]] = []
    for tie in pipeline.ties:
        rows = pair([pipeline.layers[i] for i in tie.layers])
        found += [row.parameters for row in rows if row.by != "shape" and len(row.parameters) > 1]
    return {(layer, p.path): number for number, row in enumerate(found) for layer, p in row.items()}


def _build(
    loaded: Loaded, first: Sequence[Any], others: Sequence[Any], modules: Sequence[nn.Module | None], method: str, stages: int
) -> Build:
    """The pipeline of a rank; the last rank has the layers that the target gives there."""
    arguments = dict(loaded.record.arguments) if loaded.record else {}
    given = {name: value for name, value in arguments.items() if name not in ("num_stages", "topology", "partition_method")}

    def build(topology: Any) -> PipelineModule:
        items = others if int(os.environ["RANK"]) == stages - 1 else first
        layers = [m if isinstance(item, nn.Module) else item for item, m in zip(items, modules, strict=True)]
        pipeline = _unbuilt(loaded)
        PipelineModule.__init__(pipeline, layers=layers, topology=topology, partition_method=method, **given)
        return pipeline

    return build


def _unbuilt(loaded: Loaded) -> Any:
    """An object of the user's class, with what its constructor has set; DeepSpeed's constructor is still to be run."""
    if loaded.record is None:
        return PipelineModule.__new__(PipelineModule)
    if isinstance(loaded.value, PipelineModule):
        return copy.copy(loaded.value)
    owner: Any = loaded.record.owner
    return owner.__new__(owner)


def _items(loaded: Loaded) -> list[Any]:
    return list(loaded.record.layers if loaded.record else loaded.value)


def _items_of_rank(loaded: Loaded, rank: int, ranks: int) -> list[Any]:
    """What the target gives when it is asked as another rank: a list may depend on RANK."""
    with as_rank(rank, ranks):
        return _items(loaded.rebuild("meta"))


def _lists(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Keys and lists; one that can be read but once is not looked at."""
    specs = (item for item in items if isinstance(item, TiedLayerSpec))
    return [(spec.key, list(names) if isinstance(names := spec.tied_weight_attr, (list, tuple)) else None) for spec in specs]
