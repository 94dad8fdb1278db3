"""Writing files: all at once or not at all, and never over a file that is not tiespec's."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tiespec.errors import OutputError


def write_text(path: str, text: str, is_ours: Callable[[str], bool], force: bool = False) -> None:
    """Write a text file atomically, as UTF-8 with LF; otherwise as ``write_bytes``."""
    write_bytes(path, text.encode(), lambda data: is_ours(_as_text(data)), force)


def write_bytes(path: str, data: bytes, is_ours: Callable[[bytes], bool], force: bool = False) -> None:
    """Write a file atomically.

    Args:
        path (str): where.
        data (bytes): what.
        is_ours (Callable[[bytes], bool]): whether the content of an existing file was written by tiespec.
        force (bool): overwrite whatever is there.

    Raises:
        OutputError: it exists and is not tiespec's, or cannot be written.
    """
    target = Path(os.path.realpath(path))  # through a link, so that the link stays
    if target.is_dir():
        raise OutputError("this is a folder", "name a file in it", path)
    if not target.parent.is_dir():
        raise OutputError("there is no such folder", f"make it: mkdir -p {shlex.quote(str(target.parent))}", path)
    if target.exists() and not force and not is_ours(_existing(target)):
        raise OutputError("tiespec did not write this file and leaves it alone", "--force overwrites it", path)
    if target.exists() and not target.stat().st_mode & 0o222:
        raise OutputError("the file is write-protected", "nothing was changed", path)
    try:
        _replace(target, data)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror or error}", "nothing was changed", path) from error


def replace_files(contents: Mapping[str, tuple[bytes, bytes]]) -> None:
    """Replace what is in files, each atomically; none of them where one is protected or was changed meanwhile.

    Args:
        contents (Mapping[str, tuple[bytes, bytes]]): path -> (what is in the file, what shall be in it).

    Raises:
        OutputError: a file is write-protected, holds something else, or cannot be written.
    """
    for path, (before, _) in contents.items():
        if _existing(Path(path)) != before:
            raise OutputError("the file was changed while it was checked", "nothing was changed; run it again", path)
        if not os.stat(path).st_mode & 0o222:
            raise OutputError("the file is write-protected", "nothing was changed; to allow it: chmod u+w", path)
    for path, (_, after) in contents.items():
        write_bytes(path, after, lambda data: True)


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


def _existing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it cannot be read: not ours
        return b""


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:  # no text: not ours
        return ""


def _replace(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
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
