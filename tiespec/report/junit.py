"""``--format junit``: a test case for each tie and family of rules, those that pass included."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from tiespec.report.checked import Checked, explained
from tiespec.verdict import Finding, Report

FAMILIES = {"1": "paths", "2": "keys", "3": "coverage", "4": "gradients", "5": "topology", "9": "spec file"}
"""The first digit of a code -> the family."""


def junit(checked: Sequence[Checked]) -> str:
    """JUnit XML. Readers keep the first of equal names, so that every test case of a suite has its own."""
    root = ElementTree.Element("testsuites", name="tiespec check")
    for one in checked:
        suite = ElementTree.SubElement(root, "testsuite", name=one.target)
        if one.report is not None:
            _cases(suite, one.target, one.report)
        else:
            case = ElementTree.SubElement(suite, "testcase", classname=one.target, name="load")
            ElementTree.SubElement(case, "error", message=_text(str(one.error)), type=type(one.error).__name__)
        for attribute, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _cases(suite: ElementTree.Element, target: str, report: Report) -> None:
    families = [family for family in FAMILIES.values() if family != "spec file"]
    names: dict[str, tuple[str | None, str]] = {f"key {k}: {family}": (k, family) for k in report.keys for family in families}
    names |= {f"pipeline: {family}": (None, family) for family in FAMILIES.values()}
    for name, (key, family) in names.items():
        case = ElementTree.SubElement(suite, "testcase", classname=target, name=_text(name))
        about = [f for f in report.findings if (_key(f, report), _family(f)) == (key, family)]
        failing = [f for f in about if f.severity != "note"]
        if failing:
            codes = ", ".join(dict.fromkeys(f.code for f in failing))
            failure = ElementTree.SubElement(case, "failure", type=codes, message=_text(failing[0].message))
            failure.text = _text("\n".join(f"{f.file or target}:{f.line or ''} {f.code} {explained(f)}" for f in failing))
        if len(about) > len(failing):
            ElementTree.SubElement(case, "system-out").text = _text("\n".join(f.message for f in about if f not in failing))


def _key(finding: Finding, report: Report) -> str | None:
    """The tie that a finding belongs to; the spec file belongs to the pipeline."""
    return finding.key if finding.key in report.keys and _family(finding) != "spec file" else None


def _family(finding: Finding) -> str:
    return FAMILIES[finding.code[3]]


def _text(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c >= "\U00010000")
