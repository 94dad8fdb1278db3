"""Run the rules on a context: findings and notes, after what the user ignores."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiespec.errors import UsageError
from tiespec.expression import nearest_name
from tiespec.pipeline import Location, Pipeline
from tiespec.rules import RULES
from tiespec.rules.catalogue import Found, Rule
from tiespec.rules.context import Context
from tiespec.stages import stage_of
from tiespec.verdict import Fact, Finding, Note, Severity

_INLINE = re.compile(r"#\s*tiespec:\s*ignore(?:\[([^\]]*)\])?")


@dataclass(frozen=True)
class Choice:
    """Which findings the user wants.

    Args:
        select (tuple[str, ...]): codes or their beginnings; empty for all.
        ignore (tuple[str, ...]): codes or their beginnings.
        by_key (Mapping[str, tuple[str, ...]]): key -> codes that are ignored for it.
        severities (Mapping[str, Severity]): code -> severity in place of the rule's.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    by_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    severities: Mapping[str, Severity] = field(default_factory=dict)


def check_codes(codes: Sequence[str]) -> None:
    """Refuse what is neither a code nor the beginning of one.

    Raises:
        UsageError: with the nearest code.
    """
    for code in codes:
        if not code or not any(known.startswith(code) for known in RULES):
            raise UsageError(f"{code!r} is no rule", f"{nearest_name(code, RULES)} `tiespec rule` lists them all")


def find(context: Context, choice: Choice) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """All rules that are wanted, on one context.

    Raises:
        UsageError: a code in ``choice`` that is none.
    """
    check_codes([*choice.select, *choice.ignore, *choice.severities, *(c for codes in choice.by_key.values() for c in codes)])
    wanted = [rule for rule in RULES.values() if _wanted(rule.code, choice)]
    findings, notes = [], []
    for rule in wanted:
        for found in rule.find(context):
            if isinstance(found, Found):
                findings.append(_finding(rule, found, context, choice))
            else:
                notes.append(Note(code=rule.code, message=found.message, help=found.help))
    findings = [f for f in findings if f.code != "TIE501" or not _is_explained(f, findings)]
    if any(f.consequence == "crash" for f in findings):  # the construction raises what a rule has explained
        notes = [note for note in notes if note.code != "TIE501"]
    kept, stale = _silenced(findings, context.pipeline, choice)
    if _wanted("TIE902", choice):
        kept += [_finding(RULES["TIE902"], found, context, choice, location) for found, location in stale]
    return tuple(sorted(kept, key=_order)), tuple(notes)


OF_COLLECTIVES = (
    "TIE101", "TIE102", "TIE103", "TIE105", "TIE106", "TIE107", "TIE201", "TIE203", "TIE204", "TIE205", "TIE206", "TIE401",
    "TIE402",
)  # fmt: skip
"""The rules on what the ranks of a tie send each other; the others have nothing to do with where ranks part."""


def _is_explained(simulated: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a rule has said why ranks part: the same tie (or none is known), in a number of stages that both name."""
    return any(
        f.code in OF_COLLECTIVES
        and f.key is not None
        and simulated.key in (None, f.key)
        and (not f.stages or bool({*f.stages} & {*simulated.stages}))
        for f in findings
    )


def _wanted(code: str, choice: Choice) -> bool:
    selected = not choice.select or code.startswith(choice.select)
    return selected and not code.startswith(choice.ignore or ("?",))


def _order(finding: Finding) -> tuple[str, int, str, str, str]:
    return (finding.file or "", finding.line or 0, finding.code, finding.key or "", finding.path or "")


def _finding(rule: Rule, found: Found, context: Context, choice: Choice, location: Location | None = None) -> Finding:
    layers = context.pipeline.layers
    if location is None and found.layer is not None:
        location = layers[found.layer].location
    parts = next((cut.parts for cut in context.cuts if [cut.stages] == list(found.stages)), None)
    facts = [
        Fact(
            layer=place.layer,
            stage=None if parts is None else stage_of(place.layer, parts),
            text=place.text,
            path=place.path,
            **_written(layers[place.layer].location),
        )
        for place in found.places
    ]
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=choice.severities.get(rule.code, rule.severity),
        consequence=found.consequence or rule.consequence,
        message=found.message,
        help=found.help,
        **_written(location),
        key=found.key,
        layer=found.layer,
        path=found.path,
        stages=list(found.stages),
        facts=facts,
    )


def _written(location: Location | None) -> dict[str, Any]:
    return {"file": location.file if location else None, "line": location.line if location else None}


Line = tuple[str | None, int | None]
Stale = list[tuple[Found, Location | None]]


def _silenced(findings: list[Finding], pipeline: Pipeline, choice: Choice) -> tuple[list[Finding], Stale]:
    """What is left, and the ignores that silenced nothing."""
    inline, by_key = _inline_ignores(pipeline), {key: dict.fromkeys(codes, False) for key, codes in choice.by_key.items()}
    used: set[tuple[Line, str]] = set()
    kept = []
    for finding in findings:
        lines = {(finding.file, finding.line), *((fact.file, fact.line) for fact in finding.facts)}
        hits = {(line, code) for line in lines for code in inline.get(line, ()) if code in ("", finding.code)}
        keyed = [code for code in by_key.get(finding.key or "", {}) if finding.code.startswith(code)]
        used |= hits
        for code in keyed:
            by_key[finding.key or ""][code] = True
        if not hits and not keyed:
            kept.append(finding)
    unused = [(line, code) for line, codes in inline.items() for code in codes if (line, code) not in used]
    stale: Stale = [
        (_stale(f"ignore[{code}]" if code else "ignore"), Location(line[0] or "", line[1] or 0)) for line, code in unused
    ]
    for key, hit in by_key.items():
        stale += [(replace(_stale(f"the ignore of {c} for key {key!r}"), key=key), None) for c in hit if not hit[c]]
    return kept, stale


def _stale(what: str) -> Found:
    return Found(f"{what} silences nothing", "take it away: it would hide the same fault when it comes back")


def _inline_ignores(pipeline: Pipeline) -> dict[Line, tuple[str, ...]]:
    """Line -> the codes that are ignored there; ``""`` for all."""
    lines: dict[str, list[str]] = {}
    found: dict[Line, tuple[str, ...]] = {}
    for location in dict.fromkeys(layer.location for layer in pipeline.layers if layer.location):
        if location.file not in lines:
            lines[location.file] = _lines(location.file)
        text = lines[location.file][location.line - 1] if location.line <= len(lines[location.file]) else ""
        match = _INLINE.search(text)
        if match:
            found[location.file, location.line] = tuple(c.strip() for c in (match[1] or "").split(","))
    return found


def _lines(file: str) -> list[str]:
    linecache.checkcache(file)
    return linecache.getlines(file)
