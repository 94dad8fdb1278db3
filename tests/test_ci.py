"""The pre-commit hooks, the action's shell steps and the Slurm script, on a small repository with a fault and on one without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import HEAD, ROOT

MODEL = (
    HEAD
    + """
def layers():
    return [
        TiedLayerSpec("embed", nn.Linear, 8, 8, tied_weight_attr=["weight", "bias"]),
        LayerSpec(nn.LayerNorm, 8),
        TiedLayerSpec("embed", nn.Linear, 8, 8, tied_weight_attr=LIST),
    ]
"""
)
CONFIG = '[[tool.tiespec.targets]]\ntarget = "model.py:layers"\nstages = [2]\n'
RIGHT, WRONG = '["weight", "bias"]', '["weight"]'
PATH = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
QUIET = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CI_", "GIT_"))}
    variables |= {"PATH": PATH, **QUIET, **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def repository(folder: Path, listed: str) -> Path:
    (folder / "model.py").write_text(MODEL.replace("LIST", listed))
    (folder / "pyproject.toml").write_text(CONFIG)
    run(["git", "init", "-q"], folder)
    run(["git", "add", "-A"], folder)
    return folder


def hooks() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(("listed", "status", "said"), [(RIGHT, 0, "Passed"), (WRONG, 1, "TIE203")])
def test_the_hook_of_check(listed: str, status: int, said: str, tmp_path: Path) -> None:
    folder = repository(tmp_path, listed)
    hook = next(hook for hook in hooks() if hook["id"] == "tiespec-check")
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]}))
    done = run(["pre-commit", "run", "--all-files"], folder, PRE_COMMIT_HOME=str(tmp_path / "cache"))
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout


def test_the_hook_of_the_spec(tmp_path: Path) -> None:
    folder = repository(tmp_path, RIGHT)
    hook = next(hook for hook in hooks() if hook["id"] == "tiespec-spec") | {"args": ["model.py:layers"]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]}))
    command = ["pre-commit", "run", "--all-files"]
    run(["tiespec", "generate", "model.py:layers", "-o", "tiespec.json"], folder)
    assert run(command, folder, PRE_COMMIT_HOME=str(tmp_path / "cache")).returncode == 0
    (folder / "model.py").write_text(MODEL.replace("LIST", RIGHT).replace("8, 8", "8, 8, bias=False").replace(', "bias"', ""))
    refused = run(command, folder, PRE_COMMIT_HOME=str(tmp_path / "cache"))
    assert refused.returncode == 1
    assert "tiespec.json is out of date" in refused.stdout


def test_pre_commit_accepts_the_manifest() -> None:
    done = run(["pre-commit", "validate-manifest", ".pre-commit-hooks.yaml"], ROOT)
    assert done.returncode == 0, done.stdout


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def act(folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the action's steps as a runner does: bash with -e and pipefail, inputs in the environment."""
    inputs = {name: value["default"] for name, value in ACTION["inputs"].items()}
    inputs |= {name.replace("_", "-"): value for name, value in given.items()}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)

    (step,) = ACTION["runs"]["steps"]
    environment = {name: filled(value) for name, value in step["env"].items()}
    script = folder / "step.sh"
    script.write_text(step["run"])
    return run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        folder / filled(step["working-directory"]),
        GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        GITHUB_WORKSPACE=str(folder),
        **environment,
    )


def test_no_input_gets_into_the_shell_text() -> None:
    assert [step for step in ACTION["runs"]["steps"] if "${{" in step["run"]] == []


@pytest.mark.parametrize(("listed", "status"), [(RIGHT, 0), (WRONG, 1)])
def test_the_action(listed: str, status: int, tmp_path: Path) -> None:
    folder = repository(tmp_path, listed)
    done = act(folder, target="model.py:layers", arguments="--stages=2\n--no-simulate\n", sarif="ties.sarif")
    assert done.returncode == status, done.stdout + done.stderr
    assert ("::error file=model.py,line=" in done.stdout) is bool(status)
    assert "model.py:layers" in (folder / "summary.md").read_text()
    assert len(json.loads((folder / "ties.sarif").read_text())["runs"][0]["results"]) == status


def test_the_action_without_inputs_takes_the_config(tmp_path: Path) -> None:
    done = act(repository(tmp_path, WRONG))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TIE203" in done.stdout


def test_an_input_is_no_shell_text(tmp_path: Path) -> None:
    done = act(repository(tmp_path, RIGHT), target="$(touch hacked); `touch hacked`", arguments="--stages=$(touch hacked)")
    assert done.returncode == 2
    assert not (tmp_path / "hacked").exists()


def slurm_script() -> str:
    found = re.search(r"<!-- job\.sh -->\n```sh\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("listed", "status"), [(RIGHT, 0), (WRONG, 1)])
def test_the_slurm_script_starts_nothing_after_a_fault(listed: str, status: int, tmp_path: Path) -> None:
    """`srun` is a stand-in: there is no Slurm here."""
    folder = repository(tmp_path, listed)
    (folder / "job.sh").write_text(slurm_script())
    (folder / "srun").write_text("#!/bin/sh\ntouch started\n")
    (folder / "srun").chmod(0o755)
    done = run(["bash", "job.sh"], folder, PATH=f"{folder}{os.pathsep}{PATH}")
    assert done.returncode == status, done.stdout + done.stderr
    assert (folder / "started").exists() is (status == 0)


@pytest.mark.parametrize("name", ["GitHub", "GitLab"])
def test_the_workflows_in_the_documentation_are_valid(name: str) -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    found = re.search(rf"## {name}.*?```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    workflow = yaml.safe_load(found[1])
    commands = [step.get("run", "") for job in workflow.get("jobs", {}).values() for step in job["steps"]]
    commands += [line for job in workflow.values() if isinstance(job, dict) for line in job.get("script", [])]
    uses = [
        step["with"] for job in workflow.get("jobs", {}).values() for step in job["steps"] if "tiespec" in step.get("uses", "")
    ]
    assert any("tiespec" in line for line in commands)
    assert all(set(given) <= set(ACTION["inputs"]) for given in uses)
