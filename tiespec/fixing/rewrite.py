"""Remedies -> the new content of files: what a place is to hold, where all layers that it decides on agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache

import libcst as cst

from tiespec.fixing.literal import appended, list_in_place, new_list, quoted, split_items
from tiespec.fixing.places import Open, Place, places
from tiespec.fixing.remedy import Remedy, Tie
from tiespec.fixing.source import Source, parse

Value = str | tuple[str, ...]
Edit = tuple[Place, Value]
Ask = Callable[[Remedy, Open], tuple[list[Place], Value, "Value | None"]]
Read = Callable[[str], "bytes | None"]


def rewritten(files: Mapping[str, bytes], remedies: Sequence[Remedy], ties: Collection[Tie], read: Read) -> dict[str, bytes]:
    """The files with the remedies of some keys.

    Args:
        files (Mapping[str, bytes]): absolute path -> content of the files that are edited already.
        read (Read): path -> content of the others; None where there is no such file.
        remedies (Sequence[Remedy]): of all tied layers, also those that are right, since they may share a list.
        ties (Collection[Tie]): whose remedies are applied.
    """

    @cache
    def open(path: str) -> Source | None:
        content = files[path] if path in files else read(path)
        return None if content is None else parse(path, content)

    edits = [*_edits(remedies, ties, open, _key), *_edits(remedies, ties, open, _names)]
    edited = dict(files)
    for path in {place.file for place, _ in edits}:
        source = open(path)
        assert source is not None
        edited[path] = _applied(source, [edit for edit in edits if edit[0].file == path])
    return edited


def _key(remedy: Remedy, open: Open) -> tuple[list[Place], Value, Value | None]:
    """The places where the key is a literal, the key, and the new one."""
    found = places(remedy.calls, "key", 0, open)
    return [p for p in found if p.keyword is not None or _says(p.node, remedy.key)], remedy.key, remedy.new_key


def _names(remedy: Remedy, open: Open) -> tuple[list[Place], Value, Value | None]:
    return places(remedy.calls, "tied_weight_attr", None, open), remedy.listed, remedy.names


def _says(node: cst.CSTNode, key: str) -> bool:
    return isinstance(node, (cst.SimpleString, cst.Integer)) and str(node.evaluated_value) == key


def _edits(remedies: Sequence[Remedy], ties: Collection[Tie], open: Open, ask: Ask) -> Iterator[Edit]:
    """For each layer that wants something else the first place whose layers all want the same."""
    asked = [(remedy, *ask(remedy, open)) for remedy in remedies]
    wanted = [(found, now if new is None or y.tie not in ties else new, new) for y, found, now, new in asked]
    decided: dict[Place, Value] = {}
    for (remedy, *_), (found, value, new) in zip(asked, wanted, strict=True):
        if new is not None and remedy.tie in ties:
            agreed = (p for p in found if all(other == value for there, other, _ in wanted if p in there))
            decided.update({place: value for place in [next(agreed, None)] if place is not None})
    yield from decided.items()


def _applied(source: Source, edits: Sequence[Edit]) -> bytes:
    """The file with the edits; of two that overlap the second one is left to the next round."""
    data, rest = source.data, len(source.data)
    for place, value in sorted(edits, key=lambda edit: (edit[0].start, edit[0].end), reverse=True):
        if place.end <= rest:
            data = data[: place.start] + _text(place, value).encode() + data[place.end :]
            rest = place.start
    return data.decode().encode(source.encoding)  # utf-8-sig puts the byte order mark back


def _text(place: Place, value: Value) -> str:
    source, quote = place.source, place.source.quote()
    if place.keyword is not None:
        literal = quoted(value, quote) if isinstance(value, str) else new_list(value, quote)
        return _with_argument(place, f"{place.keyword}={literal}")
    if isinstance(value, tuple):
        return list_in_place(source, place.node, value, quote)
    own = place.node.quote if isinstance(place.node, cst.SimpleString) else quote
    return quoted(value, own if len(own) == 1 else quote)


def _with_argument(place: Place, argument: str) -> str:
    """From the end of the last argument to the end of the call, with one argument more."""
    call, source = place.node, place.source
    assert isinstance(call, cst.Call)
    spans = [source.span(arg) for arg in call.args]
    if not spans:
        return argument + source.text(place.start, place.end)
    start, end = source.arguments(call)
    return appended(split_items(source, spans, start, end), argument).text()[len(source.text(start, place.start)) :]
