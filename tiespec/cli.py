"""The command line: parse, call one function, hand its result to a reporter, exit."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, NoReturn

import typer

from tiespec import __version__
from tiespec.errors import INTERNAL_HELP, TiespecError, UsageError

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
SETUP = Annotated[str | None, typer.Option(help="FILE.py:function or pkg.mod:function to call before the target is imported.")]
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
    from tiespec.output import format_for, recorded_filters, rendered
    from tiespec.session import do

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
    color = output is None and sys.stdout.isatty()
    _deliver(result, chosen, rendered(result, chosen, _width(output), color), output, force)


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


CheckFormat = Literal["text", "concise", "json", "github", "gitlab", "sarif", "junit"]
CODES = Annotated[str, typer.Option(metavar="CODES", help="Rules, or beginnings of their codes, with commas: TIE401,TIE2.")]


@app.command()
def check(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="As for generate; else those of [tool.tiespec].")
    ] = None,
    spec: Annotated[str | None, typer.Option(metavar="FILE", help="Recorded spec to compare with.")] = None,
    stages: Annotated[list[int], typer.Option(min=1, help="Number of pipeline stages (repeatable).")] = [],
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel copies of the pipeline.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks of a stage.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="METHOD", help="uniform, parameters or type:REGEX.")] = None,
    ds_config: Annotated[str | None, typer.Option(metavar="FILE", help="DeepSpeed's JSON config.")] = None,
    input: INPUT = [],
    deepspeed: Annotated[str | None, typer.Option(metavar="VERSION", help="DeepSpeed release on the cluster.")] = None,
    param_groups: Annotated[str | None, typer.Option(help="FILE.py:function from a module to optimizer groups.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate/--no-simulate", help="Construct the installed DeepSpeed under simulated ranks.")
    ] = True,
    select: CODES = "",
    ignore: CODES = "",
    format: Annotated[CheckFormat, typer.Option(envvar="TIESPEC_FORMAT", help="Of the report on stdout.")] = "text",
    report: Annotated[list[str], typer.Option(metavar="FORMAT=PATH", help="One more report, into a file (repeatable).")] = [],
    setup: SETUP = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds that loading a target may take (120).")] = None,
    debug: DEBUG = False,
) -> None:
    """Prove before the run that every tie will hold; exit 1 when one does not."""
    from tiespec.check_output import Wanted, delivered, parse_reports
    from tiespec.expression import parse_target
    from tiespec.plan import plan
    from tiespec.session import print_report

    given = {
        "spec": spec, "stages": stages, "data_parallel": dp, "tensor_parallel": tp, "partition": partition,
        "ds_config": ds_config, "input": input, "deepspeed": deepspeed, "param_groups": param_groups,
        "select": _codes(select), "ignore": _codes(ignore), "setup": setup, "simulate": None if simulate else False,
    }  # fmt: skip
    if target is not None:
        parse_target(target)
    planned, folder = plan(target, {name: value for name, value in given.items() if value not in (None, [])}, timeout)
    wanted = Wanted(format, parse_reports(report), target is not None, sys.stdout.isatty())
    text, status = delivered(planned, folder, wanted, debug)
    if not print_report(text):
        status = COULD_NOT
    raise typer.Exit(status)


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]


@app.command()
def patch(
    target: TARGET,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE.")] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Put the runtime into the file: no tiespec on the cluster.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE even if tiespec did not write it.")] = False,
    input: INPUT = [],
    setup: SETUP = None,
    timeout: TIMEOUT = 120.0,
    debug: DEBUG = False,
) -> None:
    """Write a Python module that builds the target with a PipelineModule whose ties hold."""
    from tiespec.expression import parse_target
    from tiespec.files import write_text
    from tiespec.patch import Patch, check_output_name, is_patch, patch_source
    from tiespec.session import do, print_report
    from tiespec.spec import TieSpec

    if parse_target(target).kind == "hf":
        raise UsageError("a transformers config is no sequence of layers", "name a function that gives the layers of the model")
    output = None if output == "-" else output
    if output is not None:
        check_output_name(output, target)
    result = do("patch", {"target": target, "setup": setup, "input": input}, timeout, debug)
    spec = TieSpec.model_validate(result["spec"])
    text = patch_source(Patch(spec, result["kind"], spec.target, output, standalone))
    if output is not None:
        write_text(output, text, is_patch, force)
        sys.stderr.write(f"wrote {output}\n")
    elif not print_report(text):
        raise typer.Exit(COULD_NOT)


@app.command()
def verify(
    target: TARGET,
    stages: Annotated[int | None, typer.Option(min=1, help="Number of pipeline stages; the target's own, else 2.")] = None,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel copies of the pipeline.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    partition: Annotated[str | None, typer.Option(metavar="METHOD", help="uniform, parameters or type:REGEX.")] = None,
    ds_config: Annotated[str | None, typer.Option(metavar="FILE", help="DeepSpeed's JSON config: precision and ZeRO.")] = None,
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
        "partition": partition, "config": _ds_config(ds_config), "patched": patched, "timeout": timeout, "load_timeout": 120.0,
    }  # fmt: skip
    text, status = verified(options, format, debug)
    if text and not print_report(text):
        status = COULD_NOT
    raise typer.Exit(status)


def _ds_config(path: str | None) -> dict[str, Any]:
    from tiespec.dsconfig import ds_config_content

    return {} if path is None else ds_config_content(path)


@app.command()
def rule(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Such as TIE401; all of them when left out.")] = None,
) -> None:
    """Explain a rule: what it finds, what DeepSpeed does, what to write instead."""
    from tiespec.findings import check_codes
    from tiespec.report.rules import rule_list, rule_page
    from tiespec.rules import RULES

    if code is None:
        typer.echo(rule_list(RULES.values()), nl=False)
        return
    matching = [r for r in RULES.values() if r.code.startswith(code.upper()) or r.name == code]
    if not matching:
        check_codes([code])
    typer.echo("\n".join(rule_page(r) for r in matching), nl=False)


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
