"""Every command line that README and docs show without its output does what it says; those with output are in test_docs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.pages import PATH

SOURCES = ("README.md", "docs/ci.md", "docs/formats.md")
MODEL = """
import torch
from torch import nn
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

def {name}():
    tied = ["weight", "bias"]
    return [TiedLayerSpec("embed", nn.Linear, 8, 8, tied_weight_attr=tied), *(LayerSpec(nn.LayerNorm, 8) for _ in range(8)),
            TiedLayerSpec("embed", nn.Linear, 8, 8, tied_weight_attr=tied)]
"""
MORE = """
class GPTPipe(PipelineModule):
    def __init__(self):
        super().__init__(layers=build_layers(), num_stages=2)

class GPT(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
    def to_layers(self):
        return [LayerSpec(nn.Linear, self.hidden, self.hidden), LayerSpec(nn.LayerNorm, self.hidden)]
"""
FILES = {
    "pkg/__init__.py": "",
    "pkg/models.py": MODEL.format(name="build_layers"),
    "path/to/config/config.json": '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32}',
    "ds.json": '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
    "train.py": "def groups(module):\n    return [{'params': list(module.parameters()), 'weight_decay': 0.1}]\n",
    "pyproject.toml": '[[tool.tiespec.targets]]\ntarget = "model.py:build_layers"\nstages = [4]\n',
}


def shown_commands() -> list[str]:
    """The lines with `tiespec` in shell blocks, without comments; blocks that other tests run are left out."""
    found = []
    for source in SOURCES:
        text = (ROOT / source).read_text()
        blocks = re.findall(r"(<!-- (?:example|patch|tests|job\.sh) -->\n)?```sh\n(.*?)```", text, re.DOTALL)
        found += [line.partition("  #")[0].strip() for marked, block in blocks if not marked for line in block.splitlines()]
    return list(dict.fromkeys(line for line in found if line.startswith("tiespec ")))


COMMANDS = shown_commands()


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 15
    assert any("--report" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    several = "model.py:" in command
    (tmp_path / "model.py").write_text(MODEL.format(name="build_layers") + (MORE if several else ""))
    if "--check" in command:
        run("tiespec generate model.py -o tiespec.json", tmp_path)
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout or "-o" in command or "github" in command  # GitHub has nothing to mark where nothing is wrong
    for written in re.findall(r"(?:-o |--report \w+=)(\S+)", command):
        assert (tmp_path / written).read_text()


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": PATH}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
