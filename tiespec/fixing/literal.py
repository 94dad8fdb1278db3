"""The text of a list of names: a new one, or the old one with as little changed as possible, so that its comments stay."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tiespec.fixing.source import Source


@dataclass(frozen=True)
class Items:
    """What stands between two brackets: ``before + item + between + item ... + after``.

    Args:
        before (str): white space and comments before the first item.
        items (tuple[str, ...]): the items.
        between (tuple[str, ...]): after each item but the last: a comma, white space and comments.
        after (str): after the last item; it may begin with a comma.
    """

    before: str
    items: tuple[str, ...]
    between: tuple[str, ...]
    after: str

    def text(self) -> str:
        """All of it."""
        pairs = zip(self.items, (*self.between, self.after), strict=True)
        return self.before + "".join(item + gap for item, gap in pairs)


def quoted(text: str, quote: str) -> str:
    """A string literal."""
    escaped = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote}{escaped}{quote}"


def new_list(names: Sequence[str], quote: str) -> str:
    """A list literal on one line."""
    return f"[{', '.join(quoted(name, quote) for name in names)}]"


def list_in_place(source: Source, node: cst.CSTNode, names: Sequence[str], quote: str) -> str:
    """The text that replaces an expression, so that it is a list of these names.

    Args:
        source (Source): of the file.
        node (cst.CSTNode): the expression.
        names (Sequence[str]): at least one.
        quote (str): for new strings, where the expression has none.
    """
    elements = node.elements if isinstance(node, (cst.List, cst.Tuple, cst.Set)) else ()
    values = [value for one in elements if isinstance(value := one.value, cst.SimpleString)]
    if not values or len(values) < len(elements):
        return new_list(names, values[0].quote if values else quote)
    quote = values[0].quote if len(values[0].quote) == 1 else quote
    old = [str(value.evaluated_value) for value in values]
    return f"[{_changed(_items(source, node, values), old, names, quote).text()}]"


def _items(source: Source, node: cst.CSTNode, values: Sequence[cst.SimpleString]) -> Items:
    spans = [source.span(value) for value in values]
    start, end = source.span(node)
    if not isinstance(node, cst.Tuple):
        return split_items(source, spans, start + 1, end - 1)
    bracket = 1 if node.lpar else 0
    items = split_items(source, spans, start + bracket, end - bracket)
    return replace(items, after="") if items.after.strip(" ") == "," else items  # ("a",)


def split_items(source: Source, spans: Sequence[tuple[int, int]], start: int, end: int) -> Items:
    """The items at some offsets, and what is around them from ``start`` to ``end``."""
    ends = [start, *(stop for _, stop in spans)]
    begins = [*(begin for begin, _ in spans), end]
    before, *between, after = (source.text(stop, begin) for stop, begin in zip(ends, begins, strict=True))
    return Items(before, tuple(source.text(*span) for span in spans), tuple(between), after)


def _changed(items: Items, old: Sequence[str], names: Sequence[str], quote: str) -> Items:
    stay = _staying(old, names)
    for index in reversed([i for i in range(len(old)) if i not in stay]):
        items = _without(items, index)
    present = [old[i] for i in stay]
    texts = [text if was == name else quoted(name, quote) for text, was, name in zip(items.items, present, names, strict=False)]
    items = replace(items, items=tuple(texts))
    for name in names[len(texts) :]:
        items = appended(items, quoted(name, quote))
    return items


def _staying(old: Sequence[str], names: Sequence[str]) -> list[int]:
    """Which of the old items stay or get another name: those that are wanted, then the nearest, as many as there are names."""
    stay = [i for i, name in enumerate(old) if name in names and name not in old[:i]]
    for name in (n for n in names if n not in old):
        spare = [i for i in range(len(old)) if i not in stay]
        if spare:
            stay.append(max(spare, key=lambda i: difflib.SequenceMatcher(None, old[i], name).ratio()))
    return sorted(stay)


def _without(items: Items, index: int) -> Items:
    kept = items.items[:index] + items.items[index + 1 :]
    if index < len(items.between):  # its comment goes with it
        return replace(items, items=kept, between=items.between[:index] + items.between[index + 1 :])
    return replace(items, items=kept, between=items.between[:-1], after=_new_end(items.between[-1], items.after))


def _new_end(between: str, after: str) -> str:
    """What follows an item that was the last but one: its own comment, then the end of the list as it was."""
    comment = between[: _first_break(between)] if "\n" in between else between
    if "\n" not in after:
        return between if "#" in comment else after
    comma = after.lstrip().startswith(",") or "#" in comment
    return (comment if comma else comment.replace(",", "", 1)).rstrip() + after[_first_break(after) :]


def _first_break(text: str) -> int:
    """Where the first line ends: before its ``\\n`` or ``\\r\\n``."""
    end = text.index("\n")
    return end - 1 if text[:end].endswith("\r") else end


def appended(items: Items, text: str) -> Items:
    """One item more, on a line of its own where the others are."""
    if not items.items:
        return replace(items, items=(text,))
    comma = items.after.lstrip().startswith(",")
    if not ("\n" in items.before and "\n" in items.after):
        return replace(items, items=(*items.items, text), between=(*items.between, ", "))
    end = _first_break(items.after)
    head, rest = items.after[:end], items.after[end:]
    gap = (head if comma else f",{head}") + items.before[_first_break(items.before) :]
    return replace(items, items=(*items.items, text), between=(*items.between, gap), after=("," if comma else "") + rest)
