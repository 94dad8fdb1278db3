"""The options that commands share: the same name and meaning in each."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

FOUND, COULD_NOT, INTERRUPTED = 1, 2, 130

TARGET = Annotated[
    str, typer.Argument(metavar="TARGET", help="FILE.py, FILE.py:NAME, pkg.mod:NAME, a call in place of NAME, or hf:FOLDER.")
]
INPUT = Annotated[list[str], typer.Option(help='Sample input, one per tensor: "int64[2,16]<50304" or "float32[4,32]".')]
SETUP = Annotated[str | None, typer.Option(help="FILE.py:function or pkg.mod:function to call before the target is imported.")]
TIMEOUT = Annotated[float, typer.Option(min=0.1, help="Seconds that loading the user's code may take.")]
DEBUG = Annotated[bool, typer.Option(help="Run the user's code in this process, with tracebacks.")]
FORMAT = Annotated[Literal["text", "python", "json"] | None, typer.Option(help="Default: text, or by FILE's ending.")]


CheckFormat = Literal["text", "concise", "json", "github", "gitlab", "sarif", "junit"]
SELECT = Annotated[str, typer.Option(metavar="CODES", help="Only these rules: codes or their beginnings, TIE401,TIE2.")]
IGNORE = Annotated[str, typer.Option(metavar="CODES", help="Without these rules: codes or their beginnings.")]
COLOR = Annotated[Literal["auto", "always", "never"], typer.Option(help="auto: on a terminal, unless NO_COLOR is set.")]
PARTITION = Annotated[str | None, typer.Option(metavar="METHOD", help="uniform, parameters or type:REGEX.")]
DS_CONFIG = Annotated[str | None, typer.Option(metavar="FILE", help="DeepSpeed's JSON config: precision and ZeRO.")]
PARAM_GROUPS = Annotated[str | None, typer.Option(help="FILE.py:function from a module to optimizer groups.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite FILE even if tiespec did not write it.")]
