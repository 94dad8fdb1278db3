"""A file of the user's, parsed by LibCST: its calls, the place of every node in it, and what its names refer to."""

from __future__ import annotations

import io
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst import matchers
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, ParentNodeProvider, ScopeProvider

from tiespec.pipeline import CallSite


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed file. All offsets are in bytes of its text as UTF-8, whatever its encoding.

    Args:
        path (str): absolute.
        data (bytes): the text as UTF-8, without a byte order mark.
        encoding (str): of the file.
        module (cst.Module): the text as a tree.
        spans, scopes, parents (Mapping): LibCST's metadata, by node.
        calls (Mapping[int, cst.Call]): the offset at which a call ends -> the call.
    """

    path: str
    data: bytes
    encoding: str
    module: cst.Module = field(repr=False)
    spans: Mapping[Any, Any] = field(repr=False)
    scopes: Mapping[Any, Any] = field(repr=False)
    parents: Mapping[Any, Any] = field(repr=False)
    calls: Mapping[int, cst.Call] = field(repr=False)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and past-the-end offset of a node, with the parentheses around it."""
        nodes = [*getattr(node, "lpar", ()), node, *getattr(node, "rpar", ())]
        return self.spans[nodes[0]].start, self.spans[nodes[-1]].start + self.spans[nodes[-1]].length

    def arguments(self, call: cst.Call) -> tuple[int, int]:
        """First and past-the-end offset of what is between the parentheses of a call."""
        place = self.spans[call]
        return self.data.index(b"(", self.span(call.func)[1]) + 1, place.start + place.length - 1

    def text(self, start: int, end: int) -> str:
        """What is written between two offsets."""
        return self.data[start:end].decode()

    def quote(self) -> str:
        """The quotation mark that most strings of the file have."""
        strings = matchers.findall(self.module, matchers.SimpleString())
        counts = Counter(s.quote for s in strings if isinstance(s, cst.SimpleString) and len(s.quote) == 1)
        return "'" if counts["'"] > counts['"'] else '"'


def parse(path: str, content: bytes) -> Source | None:
    """Parse a file.

    Args:
        path (str): absolute.
        content (bytes): of the file; its encoding may be declared in it.

    Returns:
        None where it is no Python, or of a syntax that LibCST does not know.
    """
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        text = content.decode(encoding)
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError):
        return None
    spans, scopes = wrapper.resolve(ByteSpanPositionProvider), wrapper.resolve(ScopeProvider)
    calls = {s.start + s.length: node for node, s in spans.items() if isinstance(node, cst.Call)}
    return Source(
        path, text.encode(), encoding, wrapper.module, spans, scopes, wrapper.resolve(ParentNodeProvider), calls
    )  # fmt: skip


def find_call(source: Source, site: CallSite) -> cst.Call | None:
    """The call at a place; None where there is none, or where only the line is known and several calls begin there."""
    lines = source.data.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    if site.end_line is not None and site.end_column is not None:
        return source.calls.get(begins[site.end_line - 1] + site.end_column) if site.end_line <= len(lines) else None
    there = [c for c in source.calls.values() if bisect_right(begins, source.spans[c].start) == site.line]
    specs = [c for c in there if matchers.matches(c.func, matchers.Name("TiedLayerSpec"))]
    return next(iter(specs or there)) if len(specs or there) == 1 else None
