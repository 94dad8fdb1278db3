"""Before the run: load the target, and say which of its parameters are meant to be one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from tiespec.analyse import Analysis, analyse_loaded
from tiespec.errors import TargetError, UsageError
from tiespec.guest import Progress
from tiespec.inputs import FORM, samples
from tiespec.pairing import pair
from tiespec.pipeline import Parameter, Pipeline
from tiespec.proposals import propose_keys
from tiespec.rules.context import UNORDERED, is_ordered
from tiespec.rules.intended import dropped_ties, weights_apart
from tiespec.rules.keys import SORTED_SINCE
from tiespec.runtime.arguments import misspelled
from tiespec.state import seed_all
from tiespec.target import load_function, load_target
from tiespec.verification.task import Place, Plan, Task, write_plan

SEED = 1


def prepare(task: Task, progress: Progress) -> None:
    """Write the plan and the sample batch into the task's folder.

    Raises:
        UsageError: no sample input is known, or ``--param-groups`` names no function.
        TargetError: the user's code failed, or the target is one plain module.
    """
    loaded = load_target(task.target, task.setup, progress)
    if task.param_groups is not None:
        load_function(task.param_groups, "--param-groups")  # a wrong name is said here, and not by every rank
    analysis = analyse_loaded(loaded, task.input, progress)
    pipeline = analysis.pipeline
    if pipeline.plain:
        what = f"{pipeline.target} is one module, not a sequence of layers: there is no pipeline to run"
        raise TargetError(what, "name a list of layers, an nn.Sequential, a PipelineModule, or a function that gives one")
    stages = task.stages or pipeline.num_stages or min(2, len(pipeline.layers))
    seed_all(SEED)
    found = samples(task.input, loaded.namespace, analysis.live)
    if not found:
        raise UsageError("no sample input is known", FORM)
    sample = next((s for s in found if s.source == analysis.usage.source), found[0])
    labels = _batch_size(sample.inputs) if sample.labels is None else sample.labels
    torch.save({"inputs": sample.inputs, "labels": labels}, Path(task.folder, "batch.pt"))
    write_plan(task.folder, _plan(analysis, stages, sample.labels is not None))


def _batch_size(inputs: Any) -> torch.Tensor:
    """Labels that nobody reads: the data loader wants some."""
    first = inputs if isinstance(inputs, torch.Tensor) else inputs[0]
    return torch.zeros(first.shape[0])


def _plan(analysis: Analysis, stages: int, labels: bool) -> Plan:
    pipeline, usage = analysis.pipeline, analysis.usage
    buffers: list[list[str]] = [[] for _ in pipeline.layers]
    for layer, path in sorted(usage.changed):
        buffers[layer].append(path)
    unknown = [f"which parameters are used is unknown: {usage.unknown}"] if usage.used is None else []
    return Plan(
        stages,
        len(pipeline.layers),
        rows_of(pipeline),
        [[a, b] for _, a, b in dropped_ties(pipeline) if _parameter(pipeline, a).shape == _parameter(pipeline, b).shape],
        [[a, b] for tie in pipeline.ties for _, a, b in weights_apart(pipeline, tie)],
        sorted({stray.owner for stray in usage.strays if stray.owner is not None}),
        None if usage.used is None else [sorted(paths) for paths in usage.used],
        [[p.path for p in layer.parameters if not p.is_buffer and not p.requires_grad] for layer in pipeline.layers],
        buffers,
        [_tie(proposal) for proposal in propose_keys(pipeline, usage)],
        _is_by_order(pipeline),
        labels,
        usage.source,
        [*pipeline.notes, *usage.notes, *unknown],
    )


def _is_by_order(pipeline: Pipeline) -> bool:
    """Sets of names, and the keys of a release that walks over a set of them."""
    tied = [pipeline.layers[i] for tie in pipeline.ties for i in tie.layers]
    keys = len(pipeline.ties) > 1 and Version(importlib.metadata.version("deepspeed")) < SORTED_SINCE
    return keys or any(layer.listed_as in UNORDERED and not is_ordered(layer) for layer in tied)


def _tie(proposal: Any) -> dict[str, Any]:
    """A tie by parameter as the patched module takes it."""
    return {"key": proposal.key, "by_layer": dict(proposal.by_layer)}


def _parameter(pipeline: Pipeline, place: Place) -> Parameter:
    return pipeline.layers[place[0]].parameter(place[1])


def rows_of(pipeline: Pipeline) -> list[list[Place]]:
    """The parameters that belong together. A key that looks misspelled is taken for the one that is meant."""
    keys = {tie.key: list(tie.layers) for tie in pipeline.ties}
    for key, meant in misspelled({key: len(layers) for key, layers in keys.items()}).items():
        keys[meant] = sorted([*keys[meant], *keys.pop(key)])
    rows = []
    for layers in keys.values():
        built = [pipeline.layers[i] for i in layers if pipeline.layers[i].unbuilt is None]
        for row in pair(built) if len(built) > 1 else ():
            if row.by == "shape":  # that is a guess, and nobody said so
                continue
            rows.append([(i, parameter.path) for i, parameter in sorted(row.parameters.items())])
    return [row for row in rows if len(row) > 1]
