"""Pipeline, cut into stages -> Overview: what each stage holds, and what each tie costs."""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.overview import Box, Overview, Stage, TieCost
from tiespec.pipeline import Layer, Parameter, Pipeline, Tie
from tiespec.stages import stage_of
from tiespec.usage import Usage
from tiespec.verdict import Finding


def overview(pipeline: Pipeline, usage: Usage, parts: tuple[int, ...], partition: str, findings: list[Finding]) -> Overview:
    """Describe a pipeline that is cut into stages.

    Args:
        pipeline (Pipeline): the layers.
        usage (Usage): which parameter gets a gradient at which layer.
        parts (tuple[int, ...]): first layer of every stage, and the number of layers at the end.
        partition (str): the method that cut them.
        findings (list[Finding]): for this number of stages.
    """
    costs = [_cost(pipeline, usage, tie, parts, findings) for tie in pipeline.ties]
    stages = [_stage(pipeline, i, parts, costs, findings) for i in range(len(parts) - 1)]
    return Overview(
        target=pipeline.target,
        layers=len(pipeline.layers),
        partition=partition,
        stages=stages,
        ties=costs,
        findings=findings,
        input=usage.source,
    )


def _stage(pipeline: Pipeline, index: int, parts: tuple[int, ...], costs: list[TieCost], findings: list[Finding]) -> Stage:
    layers = pipeline.layers[parts[index] : parts[index + 1]]
    built = [layer for i, layer in enumerate(layers) if layer.key is None or layer.key not in {y.key for y in layers[:i]}]
    held = {p.identity: p for layer in built for p in layer.parameters}.values()
    return Stage(
        index=index,
        boxes=[_box(run, findings) for run in _runs(layers, {i for f in findings for i in _layers_of(f)})],
        parameters=sum(p.numel for p in held if not p.is_buffer),
        nbytes=sum(p.nbytes for p in held),
        replicated=sum(cost.copied for cost in costs if index in cost.stages[1:]),
    )


def _runs(layers: tuple[Layer, ...], marked: set[int]) -> Iterator[list[Layer]]:
    """Layers, with those that are equal, without a key and without a finding put together."""
    run: list[Layer] = []
    for layer in layers:
        plain = layer.key is None and layer.index not in marked
        if run and not (plain and run[-1].key is None and run[-1].index not in marked and _alike(run[-1], layer)):
            yield run
            run = []
        run.append(layer)
    if run:
        yield run


def _alike(a: Layer, b: Layer) -> bool:
    return (a.kind, a.typename, _shapes(a)) == (b.kind, b.typename, _shapes(b))


def _shapes(layer: Layer) -> list[tuple[str, object]]:
    return [(p.path, p.shape) for p in layer.parameters]


def _box(run: list[Layer], findings: list[Finding]) -> Box:
    first, indices = run[0], [layer.index for layer in run]
    return Box(
        layers=indices,
        name=first.typename.rpartition(".")[2],
        forward_fn=first.forward_fn,
        key=first.key,
        parameters=sum(p.numel for layer in run for p in layer.parameters if not p.is_buffer),
        nbytes=sum(p.nbytes for layer in run for p in layer.parameters),
        codes=sorted({f.code for f in findings if {*indices} & _layers_of(f)}),
    )


def _layers_of(finding: Finding) -> set[int]:
    """The layer whose line is shown; of a finding on a whole key, that is the one to mend."""
    return set() if finding.layer is None else {finding.layer}


def _cost(pipeline: Pipeline, usage: Usage, tie: Tie, parts: tuple[int, ...], findings: list[Finding]) -> TieCost:
    first = pipeline.layers[tie.layers[0]]
    listed = {n.path: first.parameter(n.path) for n in first.listed if n.path is not None}
    stages = sorted({stage_of(i, parts) for i in tie.layers})
    reduced = [p for path, p in listed.items() if _is_reduced(usage, tie, path, p)]
    return TieCost(
        key=tie.key,
        layers=list(tie.layers),
        stages=stages,
        paths=[n.text for n in first.listed],
        copied=sum(p.nbytes for p in first.parameters),
        reduced=sum(p.nbytes for p in reduced) if len(stages) > 1 else 0,
        codes=sorted({f.code for f in findings if f.key == tie.key}),
    )


def _is_reduced(usage: Usage, tie: Tie, path: str, parameter: Parameter) -> bool:
    if usage.used is None:
        return parameter.requires_grad
    return any(path in usage.used[i] for i in tie.layers)
