"""What the child process can be asked to do: options in, JSON out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tiespec.guest import Progress

if TYPE_CHECKING:
    from tiespec.analyse import Analysis
    from tiespec.verdict import Report

Options = dict[str, Any]


def generate_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec generate``: the spec and what to say about it."""
    from tiespec.analyse import analyse_target
    from tiespec.choices import Filters
    from tiespec.generation import generate_spec

    analysis = analyse_target(options["target"], options["setup"], options["input"], progress)
    filters = Filters(options["min_numel"], options["max_numel"], tuple(options["include"]), tuple(options["exclude"]))
    made = generate_spec(analysis.pipeline, analysis.usage, filters, options["stages"])
    return {
        "spec": made.spec.model_dump(),
        "layers": made.layers,
        "input": made.input,
        "notes": list(made.notes),
        "remarks": [asdict(remark) for remark in made.remarks],
    }


def check_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec check``: the report on one target."""
    return _examined(options, progress)[0].model_dump()


def fix_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec check --fix``: the report on one target, with other texts for some files, and what the specs should say."""
    from tiespec.checking import filters_of
    from tiespec.choices import Filters
    from tiespec.fixing.overlay import overlaid
    from tiespec.fixing.wanted import remedies
    from tiespec.spec import load

    with overlaid(options.pop("overlay")):
        report, analysis = _examined(options, progress)
        filters = Filters() if options["spec"] is None else filters_of(load(options["spec"]))
        found = remedies(report, analysis.pipeline, analysis.usage, filters)
    return {"report": report.model_dump(), "remedies": [asdict(remedy) for remedy in found]}


def _examined(options: Options, progress: Progress) -> tuple[Report, Analysis]:
    from tiespec.checking import Options as CheckOptions
    from tiespec.checking import examine_target

    loading = {name: options.pop(name) for name in ("target", "setup", "input")}
    by_key = {key: tuple(codes) for key, codes in options.pop("by_key").items()}
    wanted: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    given = CheckOptions(**wanted, by_key=by_key)
    return examine_target(loading["target"], given, loading["setup"], loading["input"], progress)


def patch_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec patch``: the spec, and what kind of thing the target is."""
    from tiespec.analyse import analyse_target
    from tiespec.choices import Filters
    from tiespec.errors import TargetError
    from tiespec.generation import generate_spec

    analysis = analyse_target(options["target"], options["setup"], options["input"], progress)
    if analysis.pipeline.plain:
        what = f"{analysis.pipeline.target} is one module, not a sequence of layers: there is no pipeline to patch"
        raise TargetError(what, "name a list of layers, an nn.Sequential, a PipelineModule, or a function that gives one")
    spec = generate_spec(analysis.pipeline, analysis.usage, Filters()).spec
    return {"spec": spec.model_dump(), "kind": analysis.kind}


def show_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec show``: the pipeline, cut into one number of stages."""
    from tiespec.analyse import analyse_target
    from tiespec.checking import Options as CheckOptions
    from tiespec.checking import report_on
    from tiespec.costs import overview
    from tiespec.stages import cut

    analysis = analyse_target(options["target"], options["setup"], options["input"], progress)
    pipeline = analysis.pipeline
    stages = options["stages"] or pipeline.num_stages or min(2, len(pipeline.layers))
    report = report_on(analysis, CheckOptions((stages,), partition=options["partition"], ds_config=options["ds_config"]))
    method = options["partition"] or pipeline.partition
    return overview(pipeline, analysis.usage, cut(pipeline, stages, method), method, report.findings).model_dump()


def verify_job(options: Options, progress: Progress) -> dict[str, Any]:
    """``tiespec verify``: what a real run showed."""
    from tiespec.verification.task import Task
    from tiespec.verification.verdict import Job, verify_task

    job = Job(timeout=options.pop("timeout"), joined=options.pop("joined"), load_timeout=options.pop("load_timeout"))
    task = Task(**{**options, "input": tuple(options["input"])})
    return verify_task(task, job, progress).model_dump(mode="json")


JOBS: dict[str, Callable[[Options, Progress], dict[str, Any]]] = {
    "generate": generate_job,
    "check": check_job,
    "fix": fix_job,
    "patch": patch_job,
    "show": show_job,
    "verify": verify_job,
}
