"""Python reads other text for some files, as if they had been edited."""

from __future__ import annotations

import linecache
import os
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from tiespec.blame import shown
from tiespec.recorder import replaced


@contextmanager
def overlaid(files: Mapping[str, str]) -> Iterator[None]:
    """In the body, importing a file runs the text of another; so do the lines that Python shows of it.

    Args:
        files (Mapping[str, str]): absolute path without links -> the file whose content is read in its place.
    """
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        other = files.get(os.path.realpath(self.path))
        if other is None:
            return original(self, fullname)
        return self.source_to_code(Path(other).read_bytes(), self.path)  # without the .pyc, which is of the other text

    lines = {name: _entry(name, other) for path, other in files.items() for name in {path, shown(path)}}
    linecache.cache.update(lines)
    try:
        with replaced(SourceFileLoader, "get_code", get_code):
            yield
    finally:
        for name in lines:
            linecache.cache.pop(name, None)


def _entry(name: str, other: str) -> tuple[int, None, list[str], str]:
    """Without a time of modification, so that linecache keeps it."""
    with tokenize.open(other) as file:
        lines = file.readlines()
    return sum(map(len, lines)), None, lines, name
