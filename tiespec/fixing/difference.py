"""Files before and after, as a unified diff that ``patch -p0`` takes."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterator, Sequence


def unified(path: str, before: bytes, after: bytes) -> str:
    """The diff of one file.

    Args:
        path (str): as it is shown.
        before, after (bytes): its contents, in the encoding that they declare.
    """
    lines = difflib.unified_diff(_lines(before), _lines(after), path, path)
    return "".join(_ended(lines))


def _lines(content: bytes) -> Sequence[str]:
    """Lines as ``patch`` counts them: they end with LF alone."""
    encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    return io.StringIO(content.decode("utf-8" if encoding == "utf-8-sig" else encoding), newline="\n").readlines()


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
