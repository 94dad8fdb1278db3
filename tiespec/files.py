"""Writing files: all at once or not at all, and never over a file that is not tiespec's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tiespec.errors import OutputError


def write_text(path: str, text: str, is_ours: Callable[[str], bool], force: bool = False) -> None:
    """Write a file atomically.

    Args:
        path (str): where.
        text (str): what; written as UTF-8 with LF.
        is_ours (Callable[[str], bool]): whether the text of an existing file was written by tiespec.
        force (bool): overwrite whatever is there.

    Raises:
        OutputError: it exists and is not tiespec's, or cannot be written.
    """
    target = Path(os.path.realpath(path))  # through a link, so that the link stays
    if target.is_dir():
        raise OutputError("this is a folder", "name a file in it", path)
    if target.exists() and not force and not is_ours(_existing(target)):
        raise OutputError("tiespec did not write this file and leaves it alone", "--force overwrites it", path)
    if target.exists() and not target.stat().st_mode & 0o222:
        raise OutputError("the file is write-protected", "nothing was changed", path)
    try:
        _replace(target, text)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror or error}", "nothing was changed", path) from error


def append_text(path: str, text: str) -> None:
    """Add to the end of a file that belongs to somebody else, such as the summary of a workflow's step.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with open(path, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror or error}", "nothing was changed", path) from error


def _existing(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # a folder, or no text: not ours
        return ""


def _replace(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
