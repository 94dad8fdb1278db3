"""`tiespec show`, in the terminal and as a picture; `tiespec env`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import ROOT, tiespec
from tiespec.jobs import show_job
from tiespec.overview import Overview
from tiespec.report.overview import overview_text
from tiespec.report.picture import MARK, picture
from tiespec.report.routes import lanes, routes
from tiespec.report.sizes import bytes_said, count_said, middle_cut

Write = Callable[..., str]
SMALL = "vocabulary=64, length=32, hidden=32, heads=4"
MANY = """
from torch import nn
from deepspeed.pipe import LayerSpec, TiedLayerSpec

class AVeryLongTransformerDecoderBlockNameForPipelines(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return x + self.linear(x)

def layers(ties=30):
    names = ["linear.weight", "linear.bias"]
    blocks = [TiedLayerSpec(f"block_{i:02}", AVeryLongTransformerDecoderBlockNameForPipelines, tied_weight_attr=names) for i in range(ties)]
    return [*blocks, LayerSpec(nn.Linear, 8, 8), *blocks]
"""


def shown(target: str, stages: int, partition: str | None = None) -> Overview:
    options = {"target": target, "setup": None, "input": [], "stages": stages, "partition": partition, "ds_config": None}
    return Overview.model_validate(show_job(options, lambda phase: None))


def gpt(names: list[str], stages: int) -> Overview:
    return shown(f"{ROOT}/examples/gpt.py:build_layers({names}, {SMALL}, blocks=6)", stages)


def test_stages_layers_and_costs() -> None:
    found = gpt(["word.weight"], 2)
    assert [[box.layers for box in stage.boxes] for stage in found.stages] == [[[0], [1, 2, 3]], [[4, 5, 6], [7]]]
    tie = found.ties[0]
    assert (tie.key, tie.layers, tie.stages, tie.paths) == ("embed", [0, 7], [0, 1], ["word.weight"])
    assert tie.copied == 4 * (64 * 32 + 32 * 32 + 32 + 32)  # the whole module is there twice
    assert tie.reduced == 4 * 64 * 32  # the listed names alone are reduced
    assert [stage.replicated for stage in found.stages] == [0, tie.copied]
    assert found.findings == []


def test_one_stage_holds_a_tied_module_once() -> None:
    one, two = gpt(["word.weight"], 1), gpt(["word.weight"], 2)
    assert sum(s.nbytes for s in two.stages) - one.stages[0].nbytes == one.ties[0].copied
    assert (one.ties[0].stages, one.ties[0].reduced, one.stages[0].replicated) == ([0], 0, 0)


def test_findings_are_marked_where_they_occur() -> None:
    found = gpt(["word.weight", "position.weight"], 2)
    assert {box.layers[0]: box.codes for stage in found.stages for box in stage.boxes if box.codes} == {7: ["TIE401"]}
    assert "7  Embedding (gpt.logits)  3.1 k   tie embed  TIE401" in overview_text(found, 100)
    assert b"TIE401" in drawn_text(picture(found, "svg"))


def drawn_text(svg: bytes) -> bytes:
    """matplotlib writes each text as a comment beside its shapes."""
    return b"\n".join(re.findall(rb"<!-- (.*?) -->", svg))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_text_fits_a_terminal(width: int) -> None:
    lines = overview_text(gpt(["word.weight"], 4), width).splitlines()
    rows = [line for line in lines if re.match(r"\s+\d", line)]
    assert len(rows) >= 6
    assert all(len(row) <= width for row in rows)
    assert "\x1b[" not in "\n".join(lines)


@pytest.mark.parametrize("stages", [2, 4, 16])
def test_a_picture_has_every_stage_and_tie(stages: int) -> None:
    found = shown(f"{ROOT}/examples/gpt.py:build_layers(['word.weight'], {SMALL}, blocks=14)", stages)
    svg = picture(found, "svg")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert MARK in svg[:4096]
    text = drawn_text(svg).decode()
    assert all(f"stage {i}\n" in f"{text}\n" for i in range(stages))
    assert "embed  layers 0, 15" in text
    assert svg == picture(found, "svg")  # a committed picture does not change from run to run
    assert picture(found, "png").startswith(b"\x89PNG")


def test_long_names_and_many_ties(write: Write) -> None:
    found = shown(write(MANY), 6, "uniform")
    text = drawn_text(picture(found, "svg")).decode()
    assert "and 18 more ties" in text
    assert re.search(r"AVery\S*…\S*elines", text)
    assert "AVeryLongTransformerDecoderBlockNameForPipelines" not in text


def test_lines_of_ties_do_not_overlap(write: Write) -> None:
    found = shown(write(MANY), 6, "uniform")
    made = routes(found.ties, {i: stage.index for stage in found.stages for box in stage.boxes for i in box.layers})
    assert len(made) == 30
    assert lanes(made) > 1
    for a in made:
        for b in made:
            if a is not b and a.lane is not None and a.lane == b.lane:
                assert a.stages[1] <= b.stages[0] or b.stages[1] <= a.stages[0]


def test_the_command_writes_a_picture_and_leaves_others_alone(tmp_path: Path) -> None:
    target = f"examples/gpt.py:build_layers(['word.weight'], {SMALL}, blocks=2)"
    file = tmp_path / "ties.svg"
    assert tiespec("show", target, "-o", str(file)).returncode == 0
    assert tiespec("show", target, "-o", str(file)).returncode == 0  # its own picture may be drawn anew
    file.write_text("<svg/>")
    refused = tiespec("show", target, "-o", str(file))
    assert (refused.returncode, file.read_text()) == (2, "<svg/>")
    assert "--force" in refused.stderr


@pytest.mark.parametrize(
    ("name", "said"), [("ties.pdf", "no picture has the ending .pdf"), ("ties", "no picture has the ending")]
)
def test_a_picture_of_an_unknown_kind(name: str, said: str) -> None:
    done = tiespec("show", "examples/gpt.py", "-o", name)
    assert done.returncode == 2
    assert said in done.stderr


def test_more_stages_than_layers_is_said() -> None:
    done = tiespec("show", f"examples/gpt.py:build_layers(['word.weight'], {SMALL}, blocks=1)", "--stages", "9")
    assert done.returncode == 2
    assert "cannot cut 3 layers into 9 stages" in done.stderr


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1024**2 - 1, "1.0 MiB"), (3 * 1024**5, "3.0 PiB")]
)
def test_bytes(number: int, said: str) -> None:
    assert bytes_said(number) == said


@pytest.mark.parametrize(("number", "said"), [(0, "0"), (999, "999"), (999_960, "1.0 M"), (405_000_000_000, "405.0 B")])
def test_counts(number: int, said: str) -> None:
    assert count_said(number) == said


@pytest.mark.parametrize("width", [1, 2, 5, 9, 10])
def test_names_are_cut_in_the_middle(width: int) -> None:
    assert len(middle_cut("abcdefghi", width)) == min(width, 9)


def test_env_names_what_is_installed() -> None:
    done = tiespec("env", TIESPEC_FORMAT="json")
    assert done.returncode == 0
    said = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert said["torch"].startswith("2.")
    assert said["deepspeed"] == "0.19.8"
    assert said["TIESPEC_FORMAT"] == "json"
    assert {"tiespec", "python", "platform"} <= set(said)
