"""TARGET or object -> Report: load, analyse, cut, and run the rules."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

from tiespec.analyse import Analysis, analyse_object, analyse_target
from tiespec.choices import Filters
from tiespec.dsconfig import DsConfig, parse_ds_config, read_ds_config
from tiespec.errors import TargetError, UsageError
from tiespec.findings import Choice, check_codes, find
from tiespec.generation import generate_spec
from tiespec.groups import Function, group_counts, group_settings
from tiespec.guest import Progress
from tiespec.parting import Parting
from tiespec.pipeline import Pipeline
from tiespec.rules.context import Context, Cut, Settings, stand_ins
from tiespec.simulation import partings
from tiespec.spec import TieSpec, drift, load
from tiespec.stages import cut
from tiespec.target import load_function
from tiespec.verdict import Note, Report, Severity

MOST_STAGES = 16
"""The largest number of stages that is looked at when none is given."""


@dataclass(frozen=True)
class Options:
    """What to check for.

    Args:
        stages (tuple[int, ...]): numbers of stages; empty for the target's own, else 1 to the number of layers, at most 16.
        data_parallel (int): copies of the pipeline.
        tensor_parallel (int): ranks that share a stage.
        partition (str | None): DeepSpeed's ``partition_method``; None for the target's own.
        ds_config (str | dict | None): the DeepSpeed config, as a file or as its content.
        deepspeed (str | None): the release on the cluster; None for the installed one.
        param_groups (str | None): ``pkg.mod:function`` from a module to parameter groups.
        spec (str | None): the recorded spec.
        select, ignore (tuple[str, ...]): codes, or their beginnings.
        by_key (Mapping[str, tuple[str, ...]]): key -> codes that are ignored for it.
        severities (Mapping[str, Severity]): code -> severity.
        simulate (bool): whether the installed DeepSpeed is constructed under simulated ranks.
    """

    stages: tuple[int, ...] = ()
    data_parallel: int = 1
    tensor_parallel: int = 1
    partition: str | None = None
    ds_config: str | dict[str, Any] | None = None
    deepspeed: str | None = None
    param_groups: str | None = None
    spec: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    by_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    severities: Mapping[str, Severity] = field(default_factory=dict)
    simulate: bool = True


def check_target(
    text: str,
    options: Options,
    setup: str | None = None,
    given: Sequence[str] = (),
    progress: Progress = lambda phase: None,
) -> Report:
    """Check a TARGET; see ``examine_target``."""
    return examine_target(text, options, setup, given, progress)[0]


def examine_target(
    text: str,
    options: Options,
    setup: str | None = None,
    given: Sequence[str] = (),
    progress: Progress = lambda phase: None,
) -> tuple[Report, Analysis]:
    """Check a TARGET, and say what is known of it.

    Raises:
        UsageError: an option that cannot be understood.
        TargetError: the user's code failed, or the target is one plain module.
        SpecError: the recorded spec cannot be read.
    """
    _look_at(options)
    analysis = analyse_target(text, setup, given, progress)
    groups = None if options.param_groups is None else load_function(options.param_groups, "--param-groups")
    return report_on(analysis, options, groups), analysis


def check_object(
    value: Any,
    name: str,
    options: Options,
    given: Sequence[str] = (),
    example_inputs: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
    param_groups: Callable[..., Any] | None = None,
) -> Report:
    """The same for an object of the caller's process, which is left as it was found."""
    _look_at(options)
    analysis = analyse_object(value, name, given, example_inputs, loss_fn)
    return report_on(analysis, options, param_groups)


def _look_at(options: Options) -> None:
    """Find mistakes in the options before the model is loaded."""
    check_codes([*options.select, *options.ignore, *options.severities])
    check_codes([code for codes in options.by_key.values() for code in codes])
    release(options.deepspeed)
    if options.spec is not None:
        load(options.spec)
    _ds_config(options)


def release(given: str | None) -> Version:
    """The DeepSpeed release a verdict is for.

    Raises:
        UsageError: it is no version.
    """
    try:
        return Version(given or importlib.metadata.version("deepspeed"))
    except InvalidVersion as error:
        raise UsageError(f"--deepspeed {given!r} is no version", "write it as 0.16.5") from error


def report_on(analysis: Analysis, options: Options, groups: Function | None = None) -> Report:
    """Run the rules on a target that is analysed; ``groups`` is the training script's, from a module to parameter groups.

    Raises:
        TargetError: it is one plain module, or ``groups`` failed.
    """
    pipeline = analysis.pipeline
    if pipeline.plain:
        what = f"{pipeline.target} is one module, not a sequence of layers: there is nothing to cut into stages"
        raise TargetError(what, "name what gives the list of layers, an nn.Sequential or a PipelineModule")
    settings = _settings(pipeline, options)
    cuts, impossible = _cuts(pipeline, options)
    context = Context(
        pipeline, analysis.usage, settings, cuts, impossible, options.spec, _drift(analysis, options),
        None if groups is None else group_settings(pipeline, analysis.live, groups),
        _group_counts(analysis, settings.config, cuts, groups),
        _shadows_raise(analysis, cuts), _partings(analysis, options, cuts, settings.config),
    )  # fmt: skip
    findings, notes = find(context, Choice(options.select, options.ignore, options.by_key, options.severities))
    return Report(
        target=pipeline.target,
        deepspeed=str(settings.deepspeed),
        torch=importlib.metadata.version("torch").partition("+")[0],
        stages=[*(c.stages for c in cuts), *(stages for stages, _ in impossible)],
        layers=len(pipeline.layers),
        ties=sum(len(tie.layers) > 1 for tie in pipeline.ties),
        keys=[tie.key for tie in pipeline.ties],
        input=analysis.usage.source,
        findings=list(findings),
        notes=[*notes, *(Note(code=None, message=text, help="") for text in (*pipeline.notes, *analysis.usage.notes))],
    )


def _group_counts(
    analysis: Analysis, config: DsConfig, cuts: Sequence[Cut], groups: Function | None
) -> dict[int, tuple[int, ...] | str]:
    """Asked for where each group is a collective of its own (seen on 0.19.8): ZeRO-1, but for BF16_Optimizer."""
    if groups is None or config.zero_stage != 1 or config.uses_bf16_optimizer:
        return {}
    return group_counts(analysis.pipeline, analysis.live, groups, [cut.parts for cut in cuts if cut.stages > 1])


def _partings(analysis: Analysis, options: Options, cuts: Sequence[Cut], config: DsConfig) -> dict[int, Parting | str]:
    counts = [where.stages for where in cuts if where.stages > 1]
    if not options.simulate or not analysis.pipeline.ties:
        return {}
    return partings(analysis, counts, options.partition, config.hides_gradients)


def _shadows_raise(analysis: Analysis, cuts: Sequence[Cut]) -> dict[int, str]:
    """Number of stages -> what is raised when one layer of a key runs in place of another."""
    asked: dict[tuple[tuple[int, int], ...], str | None] = {}
    found = {}
    for where in cuts:
        replaced = tuple(stand_ins(analysis.pipeline, where).items())
        if replaced and replaced not in asked:
            asked[replaced] = analysis.rerun(dict(replaced))
        error = asked.get(replaced)
        if error is not None:
            found[where.stages] = error
    return found


def _settings(pipeline: Pipeline, options: Options) -> Settings:
    return Settings(
        deepspeed=release(options.deepspeed),
        stages_given=bool(options.stages or pipeline.num_stages),
        data_parallel=options.data_parallel,
        tensor_parallel=options.tensor_parallel,
        config=_ds_config(options),
        config_given=options.ds_config is not None,
    )


def _ds_config(options: Options) -> DsConfig:
    if options.ds_config is None:
        return DsConfig()
    if isinstance(options.ds_config, dict):
        return parse_ds_config(options.ds_config, "ds_config")
    return read_ds_config(options.ds_config)


def _cuts(pipeline: Pipeline, options: Options) -> tuple[tuple[Cut, ...], tuple[tuple[int, str], ...]]:
    count = len(pipeline.layers)
    wanted = options.stages or ((pipeline.num_stages,) if pipeline.num_stages else range(1, min(count, MOST_STAGES) + 1))
    cuts, impossible = [], []
    for stages in dict.fromkeys(wanted):
        if stages > count:
            impossible.append((stages, "there are more stages than layers"))
        else:
            cuts.append(Cut(stages, cut(pipeline, stages, options.partition)))
    if not options.stages and not pipeline.num_stages:  # a cut that nobody asked for is no fault when it leaves a stage empty
        cuts = [c for c in cuts if all(a < b for a, b in zip(c.parts, c.parts[1:], strict=False))]
    return tuple(cuts), tuple(impossible)


def _drift(analysis: Analysis, options: Options) -> tuple[tuple[str | None, str], ...]:
    if options.spec is None:
        return ()
    recorded = load(options.spec)
    if any(layer.unbuilt for layer in analysis.pipeline.layers):
        return ()
    return tuple(drift(recorded, generate_spec(analysis.pipeline, analysis.usage, filters_of(recorded)).spec))


def filters_of(spec: TieSpec) -> Filters:
    """The filters with which a spec was generated."""
    return Filters(spec.min_numel, spec.max_numel, tuple(spec.include or ()), tuple(spec.exclude or ()))
