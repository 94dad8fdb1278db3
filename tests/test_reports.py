"""Reports for machines: read by independent readers, and every trap that code hosts set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from tests.helpers import ROOT, tiespec
from tests.rules.models import GOOD, PARTS
from tiespec.check_output import parse_reports, rendered
from tiespec.errors import TargetError, UsageError
from tiespec.report.checked import Checked
from tiespec.report.github import github, step_summary
from tiespec.verdict import Fact, Finding, Note, Report

Write = Callable[..., str]
SARIF_SCHEMA = json.loads((ROOT / "tests" / "schemas" / "sarif-2.1.0.json").read_text())
BAD = GOOD.replace('tie(["word.weight"], logits)', 'tie(["word.weight", "scale"], logits)')


def finding(path: str = "a.weight", line: int = 7, severity: Any = "error", code: str = "TIE401") -> Finding:
    facts = [Fact(layer=i, stage=i, text=f"fact [{i}]", path=path, file="model.py", line=line + i) for i in (0, 5)]
    return Finding(
        code=code, name="unused-path", severity=severity, consequence="hang", message=f'"{path}" of [weight]: 100%, a|b\nnext',
        help="leave it out", file="model.py", line=line, key="embed", layer=5, path=path, stages=[2], facts=facts,
    )  # fmt: skip


def report(*findings: Finding) -> Checked:
    made = Report(
        target="model.py:layers", deepspeed="0.19.8", torch="2.13.0", stages=[2], layers=6, ties=2, keys=["embed", "other"],
        input="example_inputs()", findings=list(findings), notes=[Note(code="TIE303", message="not known", help="pass --input")],
    )  # fmt: skip
    return Checked("model.py:layers", made)


FAILED = Checked("lost.py", error=TargetError("it does not load", "mend it", "lost.py", 3))


def test_one_run_and_four_reports(write: Write, tmp_path: Path) -> None:
    file = write(PARTS + BAD)
    wanted = [f"{format}={tmp_path / format}" for format in ("json", "sarif", "junit", "gitlab")]
    options = [word for text in wanted for word in ("--report", text)]
    done = tiespec("check", f"{file}:layers", "--stages", "2", *options)
    assert done.returncode == 1, done.stderr
    assert "TIE203" in done.stdout
    held = json.loads((tmp_path / "json").read_text())
    codes = [f["code"] for f in held["findings"]]
    assert codes == ["TIE203"]
    sarif = json.loads((tmp_path / "sarif").read_text())
    jsonschema.validate(sarif, SARIF_SCHEMA)
    assert [r["ruleId"] for r in sarif["runs"][0]["results"]] == codes
    suites = ElementTree.parse(tmp_path / "junit").getroot()
    assert [case.find("failure").get("type") for case in suites.iter("testcase") if case.find("failure") is not None] == codes  # type: ignore[union-attr]
    assert [entry["check_name"].split()[0] for entry in json.loads((tmp_path / "gitlab").read_text())] == codes


@pytest.mark.parametrize("checked", [[report()], [report(finding(), finding("b.weight"))], [report(finding()), FAILED]])
def test_sarif_is_valid_and_has_what_code_scanning_asks_for(checked: list[Checked]) -> None:
    held = json.loads(rendered(checked, "sarif", False))
    jsonschema.validate(held, SARIF_SCHEMA)
    run = held["runs"][0]
    for rule in run["tool"]["driver"]["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert [r["message"]["text"] for r in result["relatedLocations"]] == ["layer 0: fact [0]", "layer 5: fact [5]"]
        assert not result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("/")
    assert run["invocations"][0]["executionSuccessful"] == (FAILED not in checked)


def _fingerprints(checked: list[Checked]) -> list[str]:
    return [entry["fingerprint"] for entry in json.loads(rendered(checked, "gitlab", False))]


def test_fingerprints_hold_no_line_and_are_unique() -> None:
    here = [report(finding(), finding(), finding("b.weight"))]
    below = [report(finding(line=70), finding(line=70), finding("b.weight", line=70))]
    assert _fingerprints(here) == _fingerprints(below)
    assert len(set(_fingerprints(here))) == 3
    sarif = json.loads(rendered(here, "sarif", False))["runs"][0]["results"]
    assert [r["partialFingerprints"]["tiespec/v1"] for r in sarif] == _fingerprints(here)


def test_gitlab_names_a_path_and_a_line_for_every_entry() -> None:
    for entry in json.loads(
        rendered([report(finding().model_copy(update={"file": None, "line": None})), FAILED], "gitlab", False)
    ):
        assert entry["location"]["path"] in ("model.py", "lost.py")
        assert entry["location"]["lines"]["begin"] >= 1
        assert entry["severity"] in ("info", "minor", "major", "critical", "blocker")


def test_junit_has_a_case_for_each_tie_and_family() -> None:
    root = ElementTree.fromstring(
        rendered([report(finding(), finding(severity="note", code="TIE201")), FAILED], "junit", False)
    )
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(names) == len(set(names)) == 2 * 5 + 6 + 1
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["key embed: gradients"].find("failure") is not None
    assert cases["key embed: keys"].find("failure") is None
    assert cases["key embed: keys"].find("system-out") is not None
    assert len(cases["key other: gradients"]) == 0
    assert cases["load"].find("error") is not None
    assert [suite.get("failures") for suite in root] == ["1", "0"]


def test_junit_holds_what_xml_cannot() -> None:
    odd = finding().model_copy(update={"message": "a\x00b\x1b[31m <&>"})
    failure = ElementTree.fromstring(rendered([report(odd)], "junit", False)).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "ab[31m <&>"


COMMAND = re.compile(r"::(error|warning|notice) (?:[^:,]+=[^:,]*,?)*::[^\n]*")


def test_github_escapes_and_says_what_it_leaves_out() -> None:
    lines = github([report(*(finding(f"p{i}") for i in range(14)), finding(severity="warning")), FAILED]).splitlines()
    assert all(COMMAND.fullmatch(line) for line in lines)
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == 10
    assert "6 more of this level" in errors[-1]
    assert len([line for line in lines if line.startswith("::warning")]) == 1
    assert "100%25, a|b%0Anext" in lines[-1]
    assert "[weight]" in lines[-1]


def test_the_step_summary(write: Write, tmp_path: Path) -> None:
    table = step_summary([report(*(finding(f"p{i}") for i in range(14))), FAILED])
    assert len([line for line in table.splitlines() if line.startswith("| TIE401")]) == 14
    assert "a\\|b next" in table
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    target = write(PARTS + BAD) + ":layers"
    done = tiespec("check", target, "--stages", "2", "--format", "github", GITHUB_STEP_SUMMARY=str(summary))
    assert done.stdout.startswith("::error file=")
    assert summary.read_text().startswith("before\n## tiespec check")
    assert "| TIE203 |" in summary.read_text()


def test_the_format_by_environment_variable(write: Write) -> None:
    target = write(PARTS + BAD) + ":layers"
    done = tiespec("check", target, "--stages", "2", TIESPEC_FORMAT="concise", COLUMNS="20")
    first, last = done.stdout.splitlines()
    assert re.match(r".*model\.py:\d+: TIE203 key ", first)
    assert last.endswith("1 tie, 4 layers, 2 stages: 1 error")


def test_files_are_relative_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "model.py").write_text(PARTS + BAD)
    done = tiespec("check", "model.py:layers", "--stages", "2", "--format", "github", cwd=tmp_path / "inner")
    assert done.stdout.startswith("::error file=inner/model.py,")


def test_a_target_that_does_not_load_is_in_every_report(tmp_path: Path) -> None:
    options = [word for format in ("sarif", "junit", "github") for word in ("--report", f"{format}={tmp_path / format}")]
    (tmp_path / "broken.py").write_text("raise KeyError('weight')\n")
    done = tiespec("check", "broken.py", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert "broken.py: could not be checked" in done.stdout
    for format in ("sarif", "junit", "github"):
        assert "broken.py" in (tmp_path / format).read_text()


def test_wrong_reports() -> None:
    for text, said in (("sarif", "has no file"), ("sarrif=x", "there is no format"), ("=x", "there is no format")):
        with pytest.raises(UsageError, match=said):
            parse_reports([text])


def test_a_report_that_cannot_be_written_hides_nothing(write: Write, tmp_path: Path) -> None:
    options = ["--report", f"json={tmp_path / 'nowhere' / 'r.json'}", "--report", f"junit={tmp_path / 'r.xml'}"]
    done = tiespec("check", "examples/gpt.py", "--stages", "2", "--no-simulate", *options)
    assert done.returncode == 2
    assert "TIE401" in done.stdout
    assert (tmp_path / "r.xml").exists()
    assert f"mkdir -p {tmp_path / 'nowhere'}" in done.stderr
