"""``tiespec check``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tiespec.commands.options import (
    COLOR,
    COULD_NOT,
    DEBUG,
    DS_CONFIG,
    IGNORE,
    INPUT,
    PARAM_GROUPS,
    PARTITION,
    SELECT,
    SETUP,
    CheckFormat,
)


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="FILE.py, FILE.py:NAME, pkg.mod:NAME or a call; left out: those of [tool.tiespec]."
        ),
    ] = None,
    spec: Annotated[str | None, typer.Option(metavar="FILE", help="Recorded spec to compare with.")] = None,
    stages: Annotated[
        list[int], typer.Option(min=1, help="Pipeline stages (repeatable); else the target's own, or 1 to 16.")
    ] = [],
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel copies of the pipeline.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks of a stage.")] = None,
    partition: PARTITION = None,
    ds_config: DS_CONFIG = None,
    input: INPUT = [],
    deepspeed: Annotated[str | None, typer.Option(metavar="VERSION", help="DeepSpeed release on the cluster.")] = None,
    param_groups: PARAM_GROUPS = None,
    simulate: Annotated[
        bool, typer.Option("--simulate/--no-simulate", help="Construct the installed DeepSpeed under simulated ranks.")
    ] = True,
    select: SELECT = "",
    ignore: IGNORE = "",
    format: Annotated[CheckFormat, typer.Option(envvar="TIESPEC_FORMAT", help="Of the report on stdout.")] = "text",
    report: Annotated[list[str], typer.Option(metavar="FORMAT=PATH", help="One more report, into a file (repeatable).")] = [],
    fix: Annotated[bool, typer.Option("--fix", help="Show the edits of your source that a check confirms, as a diff.")] = False,
    write: Annotated[bool, typer.Option("--write", help="With --fix: write the edits; exit 0 when nothing is left.")] = False,
    color: COLOR = "auto",
    setup: SETUP = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds that loading a target may take (120).")] = None,
    debug: DEBUG = False,
) -> None:
    """Prove before the run that every tie will hold; exit 1 when one does not."""
    from tiespec.check_output import Wanted, delivered, parse_reports
    from tiespec.errors import UsageError
    from tiespec.expression import parse_target
    from tiespec.plan import plan
    from tiespec.session import print_report
    from tiespec.terminal import use_color

    given = {
        "spec": spec, "stages": stages, "data_parallel": dp, "tensor_parallel": tp, "partition": partition,
        "ds_config": ds_config, "input": input, "deepspeed": deepspeed, "param_groups": param_groups,
        "select": _codes(select), "ignore": _codes(ignore), "setup": setup, "simulate": None if simulate else False,
    }  # fmt: skip
    if write and not fix:
        raise UsageError("--write needs --fix", "look at the edits with --fix, then write them with --fix --write")
    if target is not None:
        parse_target(target)
    planned, folder = plan(target, {name: value for name, value in given.items() if value not in (None, [])}, timeout)
    wanted = Wanted(format, parse_reports(report), target is not None, use_color(color))
    if fix:
        from tiespec.fix_session import fixed

        text, status, remarks = fixed(planned, folder, wanted, debug, write)
    else:
        text, status, remarks = delivered(planned, folder, wanted, debug)
    if not print_report(text):
        status = COULD_NOT
    sys.stderr.write(remarks)
    raise typer.Exit(status)


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]
