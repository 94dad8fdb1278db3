"""``tiespec patch``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tiespec.commands.options import COULD_NOT, DEBUG, FORCE, INPUT, SETUP, TARGET, TIMEOUT
from tiespec.errors import UsageError


def patch(
    target: TARGET,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE.")] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Put the runtime into the file: no tiespec on the cluster.")
    ] = False,
    force: FORCE = False,
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
