"""``tiespec generate``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tiespec.commands.options import COLOR, COULD_NOT, DEBUG, FORCE, FORMAT, FOUND, INPUT, SETUP, TARGET, TIMEOUT
from tiespec.errors import UsageError


def generate(
    target: TARGET,
    min_numel: Annotated[int, typer.Option(min=0, help="List only parameters of at least so many elements.")] = 1,
    max_numel: Annotated[int | None, typer.Option(min=0, help="List only parameters of at most so many elements.")] = None,
    include: Annotated[list[str], typer.Option(help="List only parameters that match a GLOB (repeatable).")] = [],
    exclude: Annotated[list[str], typer.Option(help="List no parameters that match a GLOB (repeatable).")] = [],
    input: INPUT = [],
    stages: Annotated[int | None, typer.Option(min=1, help="Number of pipeline stages the warnings are about.")] = None,
    format: FORMAT = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with FILE (default tiespec.json), write nothing.")] = False,
    force: FORCE = False,
    color: COLOR = "auto",
    setup: SETUP = None,
    timeout: TIMEOUT = 120.0,
    debug: DEBUG = False,
) -> None:
    """Write the tied_weight_attr lists that train right, and say why other parameters are left out."""
    from tiespec.expression import parse_target
    from tiespec.output import format_for, recorded_filters, rendered
    from tiespec.session import do
    from tiespec.terminal import use_color

    parse_target(target)
    output = None if output == "-" else output
    chosen = format_for(output, format)
    filters = {"min_numel": min_numel, "max_numel": max_numel, "include": include, "exclude": exclude}
    if max_numel is not None and max_numel < min_numel:
        raise UsageError(f"--max-numel {max_numel} is below --min-numel {min_numel}", "nothing would be left")
    if check:
        filters = recorded_filters(output, chosen, filters)
    options = {"target": target, "setup": setup, "input": input, "stages": stages, **filters}
    result = do("generate", options, timeout, debug)
    if check:
        _compare(result, output, chosen)
        return
    colored = output is None and use_color(color)
    _deliver(result, chosen, rendered(result, chosen, _width(output), colored), output, force)


def _width(output: str | None) -> int:
    from tiespec.terminal import width

    return width() if output is None else 100


def _deliver(result: dict[str, Any], format: Any, text: str, output: str | None, force: bool) -> None:
    from tiespec.files import write_text
    from tiespec.output import is_ours, said_of
    from tiespec.report.notes import said_lines
    from tiespec.session import print_report

    if format != "text":
        sys.stderr.write(said_lines(said_of(result)))
    if output is None:
        if not print_report(text):
            raise typer.Exit(COULD_NOT)
        return
    write_text(output, text, is_ours, force)
    sys.stderr.write(f"wrote {output}\n")


def _compare(result: dict[str, Any], output: str | None, format: Any) -> None:
    """Exit 1 when the file does not say what the model yields now."""
    from pathlib import Path

    from tiespec.output import rendered, said_of
    from tiespec.report.notes import counted, said_lines
    from tiespec.spec import SPEC_FILE, TieSpec, command_of, differences, load

    sys.stderr.write(said_lines(said_of(result)))
    path, spec = output or SPEC_FILE, TieSpec.model_validate(result["spec"])
    if format == "json" or output is None:
        found = differences(load(path), spec)
    else:
        same = Path(path).read_text(encoding="utf-8") == rendered(result, format, 100, False)
        found = [] if same else [f"it is not what `tiespec generate --format {format}` writes now"]
    if not found:
        typer.echo(f"{path} is up to date: {counted(len(spec.ties), 'tie')}")
        return
    typer.echo(f"{path} is out of date:")
    for text in found:
        typer.echo(f"  {text}")
    typer.echo(f"help: look at the changes, then write it anew: {command_of(spec, path)}")
    raise typer.Exit(FOUND)
