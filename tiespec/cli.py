"""The command line: parse, call one function, hand its result to a reporter, exit."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any, Literal, NoReturn

import typer

from tiespec import __version__
from tiespec.errors import INTERNAL_HELP, TiespecError

FOUND, COULD_NOT, INTERRUPTED = 1, 2, 130

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tiespec {__version__}")
        raise typer.Exit


@app.callback()
def tiespec(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Weight ties for DeepSpeed pipelines: the lists that train right, before the job starts."""


TARGET = Annotated[
    str, typer.Argument(metavar="TARGET", help="FILE.py, FILE.py:NAME, pkg.mod:NAME, a call in place of NAME, or hf:FOLDER.")
]
INPUT = Annotated[list[str], typer.Option(help='Sample input, one per tensor: "int64[2,16]<50304" or "float32[4,32]".')]
SETUP = Annotated[str | None, typer.Option(help="pkg.mod:function to call before the target is imported.")]
TIMEOUT = Annotated[float, typer.Option(min=0.1, help="Seconds that loading the user's code may take.")]
DEBUG = Annotated[bool, typer.Option(help="Run the user's code in this process, with tracebacks.")]
FORMAT = Annotated[Literal["text", "python", "json"] | None, typer.Option(help="Default: text, or by FILE's ending.")]


@app.command()
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE even if tiespec did not write it.")] = False,
    setup: SETUP = None,
    timeout: TIMEOUT = 120.0,
    debug: DEBUG = False,
) -> None:
    """Write the tied_weight_attr lists that train right, and say why other parameters are left out."""
    from tiespec.expression import parse_target
    from tiespec.output import format_for, rendered

    parse_target(target)
    options = {
        "target": target, "setup": setup, "input": input, "stages": stages,
        "min_numel": min_numel, "max_numel": max_numel, "include": include, "exclude": exclude,
    }  # fmt: skip
    result = _do("generate", options, timeout, debug)
    chosen = format_for(output, format)
    if check:
        _compare(result, output, chosen)
        return
    color = output is None and sys.stdout.isatty()
    _deliver(result, chosen, rendered(result, chosen, _width(output), color), output, force)


def _width(output: str | None) -> int:
    from tiespec.terminal import width

    return width() if output is None else 100


def _do(job: str, options: dict[str, Any], timeout: float, debug: bool) -> dict[str, Any]:
    if debug:
        return _do_here(job, options)
    from tiespec.host import run_job
    from tiespec.terminal import Spinner

    spinner = Spinner()
    try:
        return run_job(job, options, timeout, spinner.relay, spinner.tick)
    finally:
        spinner.stop()


def _do_here(job: str, options: dict[str, Any]) -> dict[str, Any]:
    """The same in this process: a traceback shows everything, and a debugger can be attached."""
    from contextlib import redirect_stdout

    from tiespec.jobs import JOBS

    with redirect_stdout(sys.stderr):
        try:
            return JOBS[job](options, lambda phase: None)
        except TiespecError:
            traceback.print_exc()
            raise


def _deliver(result: dict[str, Any], format: Any, text: str, output: str | None, force: bool) -> None:
    from tiespec.files import write_text
    from tiespec.output import is_ours, said_of
    from tiespec.report.notes import said_lines

    if format != "text":
        sys.stderr.write(said_lines(said_of(result)))
    if output is None:
        _print(text)
        return
    write_text(output, text, lambda existing: is_ours(format, existing), force)
    sys.stderr.write(f"wrote {output}\n")


def _compare(result: dict[str, Any], output: str | None, format: Any) -> None:
    """Exit 1 when the file does not say what the model yields now."""
    from pathlib import Path

    from tiespec.output import rendered
    from tiespec.report.notes import counted
    from tiespec.spec import SPEC_FILE, TieSpec, command_of, differences, load

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


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # `tiespec ... | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(COULD_NOT) from None


def main() -> NoReturn:
    """Run the command line; every way out has one of the documented statuses. Typer itself ends usage errors with 2."""
    try:
        app()
    except TiespecError as error:
        status = _say_error(str(error), error.help)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else COULD_NOT
        if status == INTERRUPTED:
            sys.stderr.write("interrupted\n")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        status = _say_error(f"internal error: {type(error).__name__}: {error}", INTERNAL_HELP)
    sys.exit(status)


def _say_error(message: str, help: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    if help:
        sys.stderr.write(f"help: {help}\n")
    return COULD_NOT
