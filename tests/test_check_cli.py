"""``tiespec check`` and ``tiespec rule``: options, config, exit statuses, several targets, reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import ROOT, tiespec
from tests.rules.models import GOOD, PARTS
from tiespec.config import find_config, parse_config
from tiespec.errors import UsageError
from tiespec.plan import plan

Write = Callable[..., str]

BAD = GOOD.replace('tie(["word.weight"], logits)', 'tie(["word.wait"], logits)')
RAISES = "raise ValueError('no luck')\n"


def test_the_set_of_options_is_this() -> None:
    shown = tiespec("check", "--help", COLUMNS="200").stdout
    assert re.findall(r"^\s+(--[\w-]+)", shown, re.MULTILINE) == [
        "--spec", "--stages", "--dp", "--tp", "--partition", "--ds-config", "--input", "--deepspeed", "--param-groups",
        "--simulate", "--select", "--ignore", "--format", "--report", "--fix", "--write", "--color", "--setup", "--timeout",
        "--debug", "--help",
    ]  # fmt: skip


CONFIG = """
[tool.tiespec]
targets = [{ target = "good.py:layers", stages = [2] }, { target = "MODEL", stages = [2] }]
"""

STATUS = {
    "nothing found": (("check", "good.py", "--stages", "2"), 0),
    "nothing found, as json": (("check", "good.py", "--format", "json"), 0),
    "a finding": (("check", "bad.py", "--stages", "2"), 1),
    "a finding, as json": (("check", "bad.py", "--format", "json"), 1),
    "a warning": (("check", "lone.py"), 1),
    "an ignored finding": (("check", "lone.py", "--ignore", "TIE202"), 0),
    "nothing selected": (("check", "bad.py", "--select", "TIE4"), 0),
    "the file raises": (("check", "raises.py"), 2),
    "no such file": (("check", "goood.py"), 2),
    "no such option": (("check", "good.py", "--stage", "2"), 2),
    "no such rule": (("check", "good.py", "--select", "TIE999"), 2),
    "no version": (("check", "good.py", "--deepspeed", "new"), 2),
    "no DeepSpeed config": (("check", "good.py", "--ds-config", "none.json"), 2),
    "a broken DeepSpeed config": (("check", "good.py", "--ds-config", "good.py"), 2),
    "no spec": (("check", "good.py", "--spec", "none.json"), 2),
    "no partition method": (("check", "good.py", "--partition", "evenly"), 2),
    "a plain module": (("check", "plain.py"), 2),
    "too many stages": (("check", "good.py", "--stages", "9"), 1),
    "timeout": (("check", "loop.py", "--timeout", "4"), 2),
    "no target": (("check",), 2),
    "config: all good": (("check", "--", "CONFIG:good.py"), 0),
    "config: one bad": (("check", "--", "CONFIG:bad.py"), 1),
    "config: one raises": (("check", "--", "CONFIG:raises.py"), 2),
    "rule": (("rule", "TIE401"), 0),
    "rules": (("rule",), 0),
    "rule by name": (("rule", "unused-path"), 0),
    "unknown rule": (("rule", "TIE999"), 2),
    "generate": (("generate", "good.py"), 0),
    "generate: the file raises": (("generate", "raises.py"), 2),
    "version": (("--version",), 0),
    "help": (("check", "--help"), 0),
    "no command": (("chek",), 2),
}


@pytest.mark.parametrize("case", STATUS)
def test_exit_status(case: str, write: Write, tmp_path: Path) -> None:
    arguments, status = STATUS[case]
    _write_models(write)
    if arguments[-1].startswith("CONFIG:"):
        write(CONFIG.replace("MODEL", arguments[-1].partition(":")[2]), "pyproject.toml")
        arguments = arguments[:1]
    done = tiespec(*arguments, cwd=tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    if status == 2 and "config" not in case:
        assert done.stdout == ""
        assert done.stderr.strip()


def _write_models(write: Write) -> None:
    write(PARTS + GOOD, "good.py")
    write(PARTS + BAD, "bad.py")
    write(PARTS + GOOD.replace("logits)", "logits, key='other')"), "lone.py")
    write(RAISES, "raises.py")
    write("while True:\n    pass\n", "loop.py")
    write(
        "from torch import nn\nnet = nn.Linear(2, 2)\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n",
        "plain.py",
    )


def test_one_target_that_fails_hides_no_other(write: Write, tmp_path: Path) -> None:
    _write_models(write)
    write("[tool.tiespec]\ntargets = [{target = 'raises.py'}, {target = 'bad.py'}, {target = 'good.py'}]\n", "pyproject.toml")
    text = tiespec("check", cwd=tmp_path)
    assert text.returncode == 2
    assert "error: raises.py:1: ValueError: no luck" in text.stdout
    assert "raises.py: could not be checked" in text.stdout
    assert "TIE101" in text.stdout
    assert "good.py:layers: 1 tie, 4 layers, 1 to 4 stages: no problems" in text.stdout
    targets = json.loads(tiespec("check", "--format", "json", cwd=tmp_path).stdout)["targets"]
    assert [target["target"] for target in targets] == ["raises.py", "bad.py:layers", "good.py:layers"]
    assert targets[0]["error"]["line"] == 1
    assert [finding["code"] for finding in targets[1]["findings"]] == ["TIE101"]
    assert targets[2]["findings"] == []


def test_options_of_a_target_in_the_config(write: Write, tmp_path: Path) -> None:
    _write_models(write)
    write('{"zero_optimization": {"stage": 2,},}  # as DeepSpeed reads it', "ds.json")
    write(
        "[tool.tiespec]\nseverities = { TIE503 = 'warning' }\n[[tool.tiespec.targets]]\ntarget = 'good.py'\nstages = [2, 4]\n"
        "partition = 'uniform'\nds-config = 'ds.json'\ninput = ['int64[1,5]<11']\n",
        "pyproject.toml",
    )
    (tmp_path / "below").mkdir()
    done = tiespec("check", cwd=tmp_path / "below")
    assert done.returncode == 1
    assert "TIE503 zero-stage (warning)" in done.stdout
    assert "good.py:layers: 1 tie, 4 layers, 2 and 4 stages: 1 warning" in done.stdout


def test_the_spec_beside_the_config_is_compared(write: Write, tmp_path: Path) -> None:
    _write_models(write)
    assert tiespec("generate", "good.py:layers", "-o", "tiespec.json", cwd=tmp_path).returncode == 0
    assert tiespec("check", cwd=tmp_path).returncode == 0  # the target is the one of tiespec.json
    write("[tool.tiespec]\ntargets = [{target = 'good.py:layers'}]\n", "pyproject.toml")
    assert tiespec("check", cwd=tmp_path).returncode == 0
    write((PARTS + GOOD).replace("vocabulary=11", "vocabulary=12"), "good.py")
    done = tiespec("check", cwd=tmp_path)
    assert done.returncode == 1
    assert "TIE901 spec-drift" in done.stdout


def test_unknown_keys_of_the_config_are_all_named(tmp_path: Path) -> None:
    table = {"target": [], "selct": ["TIE1"], "targets": [{"target": "a.py", "stage": 2, "ds_confg": "x", "dp": 0}]}
    with pytest.raises(UsageError) as caught:
        parse_config(table, "pyproject.toml")
    message = str(caught.value)
    for name in ("'target'", "'selct'", "'targets.0.stage'", "'targets.0.ds_confg'", "targets.0.dp"):
        assert name in message
    for name in ("targets", "select", "stages", "ds-config"):
        assert f"did you mean {name}?" in caught.value.help


def test_a_broken_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tiespec\n")
    with pytest.raises(UsageError, match="cannot read"):
        find_config(tmp_path)


def test_a_pyproject_without_the_table_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tiespec]\nselect = ['TIE1']\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    found = find_config(tmp_path / "inner")
    assert found is not None
    assert found[1].select == ["TIE1"]


def test_the_command_line_comes_before_the_config(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "[tool.tiespec]\nselect = ['TIE1']\ntargets = [{target = 'a.py', dp = 2, ignore = {embed = ['TIE2']}}]\n",
        "pyproject.toml",
    )
    monkeypatch.chdir(tmp_path)
    (planned,), folder = plan(None, {"data_parallel": 4}, None)
    assert folder is None
    assert planned.options["data_parallel"] == 4
    assert planned.options["select"] == ["TIE1"]
    assert planned.options["by_key"] == {"embed": ["TIE2"]}
    (single,), _ = plan("b.py", {}, 7.0)
    assert (single.target, single.timeout, single.options["data_parallel"]) == ("b.py", 7.0, 1)
    assert single.options["select"] == ["TIE1"]


def test_the_report_in_text() -> None:
    """Renew it with ``python -m tests.renew``."""
    done = tiespec("check", "examples/gpt.py", "--stages", "2")
    assert done.stdout == (ROOT / "tests" / "golden" / "check_gpt.txt").read_text()


def test_the_report_in_json() -> None:
    done = tiespec("check", "examples/gpt.py", "--stages", "2", "--format", "json")
    report = json.loads(done.stdout)
    assert {k: report[k] for k in ("version", "target", "deepspeed", "torch", "stages", "layers", "ties")} == {
        "version": 1, "target": "examples/gpt.py:build_layers", "deepspeed": "0.19.8", "torch": "2.13.0", "stages": [2],
        "layers": 14, "ties": 1,
    }  # fmt: skip
    first = report["findings"][0]
    assert {k: first[k] for k in ("code", "name", "severity", "consequence", "file", "line", "key", "layer", "path", "stages")} == {
        "code": "TIE401", "name": "unused-path", "severity": "error", "consequence": "hang", "file": "examples/gpt.py", "line": 52,
        "key": "embed", "layer": 13, "path": "norm.bias", "stages": [2],
    }  # fmt: skip
    assert report["notes"] == []


def test_a_note_names_what_to_pass(write: Write) -> None:
    file = write(
        (PARTS + GOOD)
        .replace("def example_inputs", "def no_inputs")
        .replace("return self.word(tokens)", "return self.words(tokens)")
    )
    done = tiespec("check", f"{file}:layers", "--stages", "2")
    assert done.returncode == 0
    assert "note: TIE401 is undecided" in done.stdout
    assert "pass --input" in done.stdout


def test_rule_shows_the_page() -> None:
    assert tiespec("rule", "TIE401").stdout == (ROOT / "docs" / "rules" / "TIE401.md").read_text()
    listed = tiespec("rule").stdout.splitlines()
    assert len(listed) == len(list((ROOT / "docs" / "rules").glob("TIE*.md")))


def test_rule_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, tiespec.rules; print({'torch', 'deepspeed'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "set()\n"
