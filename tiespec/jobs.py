"""What the child process can be asked to do: options in, JSON out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tiespec.guest import Progress

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
    from tiespec.checking import Options as CheckOptions
    from tiespec.checking import check_target

    loading = {name: options.pop(name) for name in ("target", "setup", "input")}
    by_key = {key: tuple(codes) for key, codes in options.pop("by_key").items()}
    wanted: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    report = check_target(
        loading["target"], CheckOptions(**wanted, by_key=by_key), loading["setup"], loading["input"], progress
    )  # fmt: skip
    return report.model_dump()


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
    "patch": patch_job,
    "verify": verify_job,
}
