"""Report, Pipeline and Usage -> what the spec of each tied layer should say."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace

from tiespec.choices import Filters
from tiespec.fixing.remedy import Remedy
from tiespec.generation import generate_spec
from tiespec.pipeline import Layer, Pipeline
from tiespec.rules.context import ORDERED, is_ordered, listed_paths
from tiespec.rules.keys import valid_key
from tiespec.spec import TieSpec
from tiespec.usage import Usage
from tiespec.verdict import Report

_NEAR = 0.8
_LETTERS = 4
"""Words of fewer letters that differ are more likely two names than one name and a misspelling: ``proj_q``, ``proj_k``."""


def remedies(report: Report, pipeline: Pipeline, usage: Usage, filters: Filters) -> tuple[Remedy, ...]:
    """One for each tied layer whose spec the user's source makes; only where its key has a finding is something to change.

    Args:
        report (Report): of this pipeline.
        pipeline (Pipeline): its layers.
        usage (Usage): which parameters get a gradient where.
        filters (Filters): which parameters may be listed.
    """
    keys, lists = _new_keys(report, pipeline), _lists(report, pipeline, usage, filters)
    return tuple(_remedy(y, keys, lists) for y in pipeline.layers if y.key is not None and y.calls)


def _remedy(layer: Layer, keys: Mapping[str, str], lists: Mapping[int, tuple[str, ...]]) -> Remedy:
    assert layer.key is not None
    calls = tuple(replace(call, file=os.path.realpath(call.file)) for call in layer.calls)
    listed, names, key = tuple(n.text for n in layer.listed), lists.get(layer.index), keys.get(layer.key)
    right = names == listed and layer.listed_as in ORDERED
    return Remedy(layer.key, calls, listed, None if right or key else names or None, key)


def _codes(report: Report) -> dict[str, set[str]]:
    """Key -> the codes of its findings."""
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        if finding.key is not None and finding.severity != "note":
            found.setdefault(finding.key, set()).add(finding.code)
    return found


def _new_keys(report: Report, pipeline: Pipeline) -> dict[str, str]:
    """Key -> the key that it should be, where there is one sure answer."""
    known, found = [tie.key for tie in pipeline.ties], {}
    for key, codes in _codes(report).items():
        if "TIE201" in codes:
            found[key] = valid_key(key)
        elif "TIE202" in codes and (near := _misspelled(key, known)) is not None:
            found[key] = near
    taken = [*known, *found.values()]
    return {key: new for key, new in found.items() if "TIE201" not in _codes(report)[key] or taken.count(new) == 1}


def _misspelled(key: str, known: list[str]) -> str | None:
    """The one key that is so near that only a misspelling explains it."""
    near = difflib.get_close_matches(key, [k for k in known if k != key], n=2, cutoff=_NEAR)
    return near[0] if len(near) == 1 and _same_words(key, near[0]) else None


def _same_words(key: str, other: str) -> bool:
    first, second = re.findall(r"[^\W\d_]+", key), re.findall(r"[^\W\d_]+", other)
    if re.findall(r"\d+", key) != re.findall(r"\d+", other) or len(first) != len(second):
        return False
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    return all(a[0] == b[0] and min(len(a), len(b)) >= _LETTERS for a, b in differing)


def _lists(report: Report, pipeline: Pipeline, usage: Usage, filters: Filters) -> dict[int, tuple[str, ...]]:
    """Layer -> the names that it should list; none where the usage is unknown, since nothing is sure then."""
    if usage.used is None or any(layer.unbuilt for layer in pipeline.layers):
        return {}
    spec, found = generate_spec(pipeline, usage, filters).spec, {}
    codes = _codes(report)
    for tie in pipeline.ties:
        if tie.key in codes and len(tie.layers) > 1:
            found.update(_of_key(spec, tie.key, [pipeline.layers[i] for i in tie.layers], "TIE302" in codes[tie.key]))
    return found


def _of_key(spec: TieSpec, key: str, layers: list[Layer], complete: bool) -> dict[int, tuple[str, ...]]:
    """The generated lists; where nothing is reported as missing, only what the lists of now mean. In their order."""
    lists = {layer.index: spec.names(key, layer=layer.index) for layer in layers}
    count = len(lists[layers[0].index])
    meant = [j for j in range(count) if any(_path(y, lists[y.index][j]) in listed_paths(y) for y in layers)]
    kept = list(range(count)) if complete or not meant else meant
    guide = next((y for y in layers if is_ordered(y) and any(n.path for n in y.listed)), None)
    if guide is not None:
        order = listed_paths(guide)
        paths = [_path(guide, name) for name in lists[guide.index]]
        kept.sort(key=lambda j: order.index(path) if (path := paths[j]) in order else len(order))
    return {index: tuple(names[j] for j in kept) for index, names in lists.items()}


def _path(layer: Layer, name: str) -> str | None:
    return next((p.path for p in layer.parameters if name in layer.names_of(p.path)), None)
