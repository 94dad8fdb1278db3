"""``tiespec show``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiespec.commands.options import COLOR, COULD_NOT, DEBUG, DS_CONFIG, FORCE, INPUT, PARTITION, SETUP, TARGET, TIMEOUT
from tiespec.errors import UsageError

if TYPE_CHECKING:
    from tiespec.overview import Overview


def show(
    target: TARGET,
    stages: Annotated[int | None, typer.Option(min=1, help="Number of pipeline stages; the target's own, else 2.")] = None,
    partition: PARTITION = None,
    ds_config: DS_CONFIG = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Draw a picture: FILE.svg or FILE.png.")
    ] = None,
    force: FORCE = False,
    input: INPUT = [],
    color: COLOR = "auto",
    setup: SETUP = None,
    timeout: TIMEOUT = 120.0,
    debug: DEBUG = False,
) -> None:
    """Show the pipeline as stages with their layers and ties, and what each tie costs."""
    from tiespec.expression import parse_target
    from tiespec.overview import Overview
    from tiespec.report.overview import overview_text
    from tiespec.session import do, print_report
    from tiespec.terminal import use_color, width

    parse_target(target)
    if output is not None:
        _picture_format(output)
    options = {
        "target": target, "setup": setup, "input": input, "stages": stages, "partition": partition, "ds_config": ds_config,
    }  # fmt: skip
    shown = Overview.model_validate(do("show", options, timeout, debug))
    if output is not None:
        _draw(shown, output, force)
    elif not print_report(overview_text(shown, width(), use_color(color))):
        raise typer.Exit(COULD_NOT)


def _picture_format(path: str) -> str:
    """The format by the file's ending, once matplotlib is known to be there: the model is not loaded in vain."""
    from importlib.util import find_spec

    format = Path(path).suffix.removeprefix(".").lower()
    if format not in ("svg", "png"):
        raise UsageError(f"no picture has the ending {Path(path).suffix or 'of ' + path}", "end FILE in .svg or .png")
    if find_spec("matplotlib") is None:
        raise UsageError("pictures are drawn with matplotlib, and it is not installed", "pip install 'tiespec[plot]'")
    return format


def _draw(shown: Overview, path: str, force: bool) -> None:
    from tiespec.files import write_bytes
    from tiespec.report.picture import MARK, picture

    data = picture(shown, "svg" if _picture_format(path) == "svg" else "png")
    write_bytes(path, data, lambda there: MARK in there[:4096], force)
    sys.stderr.write(f"wrote {path}\n")
