"""Pipeline and Usage -> TieSpec: which names to list, and why the others are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tiespec.choices import Choice, Filters, choose
from tiespec.errors import TargetError
from tiespec.pairing import common_name, pair
from tiespec.pipeline import Layer, Parameter, Pipeline, Tie
from tiespec.proposals import propose_keys
from tiespec.remarks import Remark, remarks_on
from tiespec.spec import SpecParameter, SpecTie, TieSpec
from tiespec.usage import Usage


@dataclass(frozen=True)
class Generated:
    """A spec, and what to say about it.

    Args:
        spec (TieSpec): the spec.
        layers (int): how many layers the pipeline has; 0 for a plain module.
        input (str): the sample input that decided which parameters are used.
        notes (tuple[str, ...]): what was done differently from what the user may expect.
        remarks (tuple[Remark, ...]): where the lists alone do not make training right.
    """

    spec: TieSpec
    layers: int
    input: str
    notes: tuple[str, ...]
    remarks: tuple[Remark, ...]


def generate_spec(pipeline: Pipeline, usage: Usage, filters: Filters, num_stages: int | None = None) -> Generated:
    """The lists that train right, with the reason for everything that is left out.

    Args:
        pipeline (Pipeline): the layers, or a plain module.
        usage (Usage): which parameters get a gradient where.
        filters (Filters): which parameters may be listed.
        num_stages (int | None): the number of stages the remarks are about; None for the pipeline's own, or any.

    Raises:
        TargetError: the arguments of a layer do not fit its class.
        UsageError: the layers cannot be cut into so many stages.
    """
    _all_built(pipeline)
    if pipeline.plain:
        spec = _spec(pipeline, filters, [_plain_tie(pipeline.layers[0], filters)], usage)
        return Generated(spec, 0, "none", (*pipeline.notes, *_idle_globs(pipeline, filters)), ())
    ties, remarks = [], []
    for tie in pipeline.ties:
        layers = [pipeline.layers[i] for i in tie.layers]
        choices = [choose(row, tie, layers, usage, filters) for row in pair(layers)]
        entry = _tie(tie, layers, choices)
        ties.append(entry)
        remarks += remarks_on(pipeline, tie, choices, entry, usage, num_stages)
    spec = _spec(pipeline, filters, ties, usage)
    notes = (*pipeline.notes, *usage.notes, *_idle_globs(pipeline, filters))
    return Generated(spec, len(pipeline.layers), usage.source, notes, tuple(remarks))


def _idle_globs(pipeline: Pipeline, filters: Filters) -> list[str]:
    """Globs that match nothing, which is seldom meant."""
    paths = {p.path for y in pipeline.layers if y.key is not None or pipeline.plain for p in y.parameters}
    given = [("--include", glob) for glob in filters.include] + [("--exclude", glob) for glob in filters.exclude]
    return [f"{option} {glob} matches no parameter" for option, glob in given if not any(fnmatchcase(p, glob) for p in paths)]


def _all_built(pipeline: Pipeline) -> None:
    for layer in pipeline.layers:
        if layer.unbuilt is not None:
            file, line = (layer.location.file, layer.location.line) if layer.location else (None, None)
            what = f"layer {layer.index} ({layer.typename}) does not take its arguments: {layer.unbuilt}"
            raise TargetError(what, "mend the arguments of the spec", file, line)


def _spec(pipeline: Pipeline, filters: Filters, ties: list[SpecTie], usage: Usage) -> TieSpec:
    return TieSpec(
        target=pipeline.target,
        min_numel=filters.min_numel,
        max_numel=filters.max_numel,
        include=list(filters.include) or None,
        exclude=list(filters.exclude) or None,
        ties=ties,
        proposals=propose_keys(pipeline, usage) or None,
    )


def _plain_tie(layer: Layer, filters: Filters) -> SpecTie:
    parameters = [p for p in layer.parameters if not p.is_buffer]
    left_out = [_entry(p, [], reason) for p in parameters if (reason := filters.reason(p)) is not None]
    listed = [_entry(p, []) for p in parameters if filters.reason(p) is None]
    aliases = [_entry(p, [], f"same parameter as {p.path}", name) for p in parameters for name in p.aliases]
    return SpecTie(
        key=layer.name,
        layers=[],
        typename=layer.typename,
        tied_weight_attr=[p.path for p in listed],
        parameters=listed,
        left_out=[*left_out, *aliases],
    )


def _entry(parameter: Parameter, used_by: Sequence[int] | None, reason: str | None = None, name: str = "") -> SpecParameter:
    return SpecParameter(
        path=name or parameter.path,
        shape=list(parameter.shape or ()),
        dtype=parameter.dtype,
        used_by=None if used_by is None else list(used_by),
        reason=reason,
    )


def _tie(tie: Tie, layers: Sequence[Layer], choices: Sequence[Choice]) -> SpecTie:
    listed = [c for c in choices if c.reason is None]
    common = [common_name(c.row, layers) for c in listed]
    names = [name for name in common if name is not None]
    by_layer = None
    if len(names) < len(common):
        by_layer = {str(layer.index): [c.row.parameters[layer.index].path for c in listed] for layer in layers}
    aliases = [
        _entry(p, c.used_by, f"same parameter as {p.path}", alias)
        for c in choices
        if layers[0].index in c.row.parameters
        for p in [c.row.parameters[layers[0].index]]
        for alias in p.aliases
        if alias not in names
    ]
    return SpecTie(
        key=tie.key,
        layers=list(tie.layers),
        typename=layers[0].typename,
        tied_weight_attr=names if by_layer is None else None,
        by_layer=by_layer,
        parameters=[_entry(c.row.first, c.used_by) for c in listed],
        left_out=[*(_entry(c.row.first, c.used_by, c.reason) for c in choices if c.reason is not None), *aliases],
    )
