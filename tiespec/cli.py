"""The command line: every command, and every way out of one."""

from __future__ import annotations

import codecs
import io
import json
import sys
from typing import Annotated, NoReturn

import typer

from tiespec import __version__
from tiespec.commands.check import check
from tiespec.commands.env import env
from tiespec.commands.generate import generate
from tiespec.commands.options import COULD_NOT, INTERRUPTED
from tiespec.commands.patch import patch
from tiespec.commands.rule import rule
from tiespec.commands.show import show
from tiespec.commands.verify import verify
from tiespec.errors import INTERNAL_HELP, TiespecError

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


for command in (generate, check, patch, verify, show, rule, env):
    app.command()(command)


def main() -> NoReturn:
    """Run the command line; every way out has one of the documented statuses. Typer itself ends usage errors with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_escaped.__name__)  # a terminal or a log may know ASCII only; a model's names need not
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


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""What a stream cannot write, as ``\u00e8``, which JSON and Python read."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_escaped.__name__, _escaped)


def _say_error(message: str, help: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    if help:
        sys.stderr.write(f"help: {help}\n")
    return COULD_NOT
