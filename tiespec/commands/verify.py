"""``tiespec verify``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from tiespec.commands.options import COULD_NOT, DEBUG, DS_CONFIG, INPUT, PARAM_GROUPS, PARTITION, SETUP, TARGET


def verify(
    target: TARGET,
    stages: Annotated[int | None, typer.Option(min=1, help="Number of pipeline stages; the target's own, else 2.")] = None,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel copies of the pipeline.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    partition: PARTITION = None,
    ds_config: DS_CONFIG = None,
    param_groups: PARAM_GROUPS = None,
    patched: Annotated[
        bool, typer.Option("--patched/--stock", help="tiespec's PipelineModule, or what you wrote with DeepSpeed's.")
    ] = False,
    input: INPUT = [],
    format: Annotated[Literal["text", "json"], typer.Option(help="Of the report on stdout.")] = "text",
    setup: SETUP = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without news from the ranks after which they hang.")] = 30.0,
    debug: DEBUG = False,
) -> None:
    """Run the pipeline for real on CPU processes, compare it with one process; exit 1 when it is not right."""
    from tiespec.expression import parse_target
    from tiespec.session import print_report
    from tiespec.verify_session import verified

    parse_target(target)
    options = {
        "target": target, "setup": setup, "input": input, "stages": stages, "data_parallel": dp, "steps": steps,
        "partition": partition, "config": _ds_config(ds_config), "param_groups": param_groups, "patched": patched,
        "timeout": timeout, "load_timeout": 120.0,
    }  # fmt: skip
    text, status = verified(options, format, debug)
    if text and not print_report(text):
        status = COULD_NOT
    raise typer.Exit(status)


def _ds_config(path: str | None) -> dict[str, Any]:
    from tiespec.dsconfig import ds_config_content

    return {} if path is None else ds_config_content(path)
