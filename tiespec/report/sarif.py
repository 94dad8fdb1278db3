"""``--format sarif``: SARIF 2.1.0, with what GitHub code scanning asks for."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from tiespec.report.checked import Checked, all_findings, explained
from tiespec.report.rules import Documented, first_of, rule_page
from tiespec.verdict import Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "note": "note"}


def sarif(checked: Sequence[Checked], rules: Sequence[Documented]) -> str:
    """One run. GitHub shows the first location of a result alone; the other layers of a tie are related locations."""
    index = {rule.code: i for i, rule in enumerate(rules)}
    results = [_result(one, finding, mark, index[finding.code]) for one, finding, mark in all_findings(checked)]
    failed = [one for one in checked if one.error is not None]
    notices = [_notice("error", f"{one.target}: {one.error}") for one in failed]
    notices += [_notice("note", f"{one.target}: {note.message}") for one in checked if one.report for note in one.report.notes]
    driver = {
        "name": "tiespec",
        "semanticVersion": importlib.metadata.version("tiespec"),
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not failed, "toolExecutionNotifications": notices}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Documented) -> dict[str, Any]:
    page = rule_page(rule)
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": first_of(rule)},
        "fullDescription": {"text": f"{first_of(rule)} What stock DeepSpeed does: {rule.consequence}."},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"tags": [rule.consequence], "precision": "high"},
    }


def _result(one: Checked, finding: Finding, fingerprint: str, index: int) -> dict[str, Any]:
    file = finding.file or one.target.partition(":")[0]
    related = [
        {"id": i, "message": {"text": f"layer {fact.layer}: {fact.text}"}, **_location(fact.file or file, fact.line)}
        for i, fact in enumerate(finding.facts)
    ]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": explained(finding)},
        "locations": [_location(file, finding.line)],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"tiespec/v1": fingerprint},
    }


def _location(file: str, line: int | None) -> dict[str, Any]:
    artifact = {"uri": quote(PurePath(file).as_posix()), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line or 1}}}


def _notice(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}}
