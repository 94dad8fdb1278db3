"""``tiespec check --fix``: what is changed, that it is clean then, and that nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, tiespec
from tiespec import fix_session
from tiespec.check_output import Wanted
from tiespec.checking import Options, check_target
from tiespec.errors import OutputError
from tiespec.fixing.difference import unified
from tiespec.fixing.literal import list_in_place
from tiespec.fixing.overlay import overlaid
from tiespec.fixing.source import find_call, parse
from tiespec.fixing.wanted import _misspelled
from tiespec.pipeline import CallSite
from tiespec.plan import plan

Write = Callable[..., str]

PARTS = """
import torch
import torch.nn.functional as F
from torch import nn
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

class Embedding(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.word = nn.Embedding(11, hidden)
        self.scale = nn.Parameter(torch.rand(hidden) + 0.5)
        self.frozen = nn.Parameter(torch.ones(hidden), requires_grad=False)
    @property
    def weight(self):
        return self.word.weight
    @property
    def flipped(self):
        return self.word.weight.t()
    def forward(self, tokens):
        return self.word(tokens) * self.scale * self.frozen

class Head(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.linear = nn.Linear(hidden, 11, bias=False)
    def forward(self, x):
        return self.linear(x)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    def forward(self, x):
        return x + self.a(x) + torch.tanh(self.b(x))

class Block(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
    def forward(self, x):
        return x + torch.tanh(self.linear(x))

def logits(m, x):
    return F.linear(x, m.word.weight)

def scaled_logits(m, x):
    return F.linear(x * m.scale * m.frozen, m.word.weight)

def loss_fn(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())

def example_inputs():
    tokens = torch.arange(14).reshape(2, 7) % 11
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

"""

LAYERS = """
def layers():
    return [
        TiedLayerSpec("embed", Embedding, tied_weight_attr=FIRST),
        LayerSpec(Block),
        LayerSpec(Block),
        TiedLayerSpec("embed", Embedding, forward_fn=logits, tied_weight_attr=LAST),
    ]
"""


def both(first: str, last: str | None = None, before: str = "", forward_fn: str = "logits") -> str:
    """The two ends with these lists."""
    text = LAYERS.replace("FIRST", first).replace("LAST", last or first).replace("=logits", f"={forward_fn}")
    return f"{before}\n{text}"


@dataclass(frozen=True)
class Case:
    """A faulty source, and each changed part with what it is afterwards."""

    source: str
    changes: tuple[tuple[str, str], ...]
    options: dict[str, Any] = field(default_factory=dict)
    target: str = "layers"


WORD = '["word.weight"]'

FIXED = {
    "typo": Case(both('["wrod.weight"]'), (('["wrod.weight"]', WORD),)),
    "typo in single quotes": Case(both("['wrod.weight']"), (("['wrod.weight']", "['word.weight']"),)),
    "submodule": Case(both('["word"]'), (('["word"]', WORD),)),
    "unused name": Case(both('["word.weight", "scale"]'), (('["word.weight", "scale"]', WORD),)),
    "unused name before": Case(both('["scale", "word.weight"]'), (('["scale", "word.weight"]', WORD),)),
    "frozen": Case(
        both('["frozen", "word.weight"]'),
        (('["frozen", "word.weight"]', WORD),),
        {"ds_config": "ds.json"},
    ),
    "misspelled key": Case(
        both(WORD).replace('TiedLayerSpec("embed", Embedding, forward', 'TiedLayerSpec("embbed", Embedding, forward'),
        (('"embbed"', '"embed"'),),
    ),
    "misspelled key and list": Case(
        both(WORD, '["wrod.weight"]').replace('TiedLayerSpec("embed", Embedding, fo', 'TiedLayerSpec("embbed", Embedding, fo'),
        (('"embbed"', '"embed"'), ('["wrod.weight"]', WORD)),
    ),
    "key with a dot": Case(both(WORD).replace('"embed"', '"model.embed"'), (('"model.embed"', '"model_embed"'),)),
    "key of a ModuleDict": Case(both(WORD).replace('"embed", E', "key='keys', typename=E"), (("'keys'", "'tied_keys'"),)),
    "key in a constant": Case(
        both(WORD, before="KEY = 'a.b'  # of the table").replace('"embed"', "KEY"), (("'a.b'", "'a_b'"),)
    ),
    "key that is a number": Case(both(WORD).replace('"embed"', "7"), (("(7, ", '("tied_7", '),)),
    "too short": Case(both(WORD, forward_fn="scaled_logits"), ((WORD, '["word.weight", "scale"]'),)),
    "one is too short": Case(
        both('["word.weight", "scale"]', WORD, forward_fn="scaled_logits"), ((WORD, '["word.weight", "scale"]'),)
    ),
    "order": Case(
        'def layers():\n    return [\n        LayerSpec(nn.Embedding, 11, 8),\n'
        '        TiedLayerSpec("t", Two, tied_weight_attr=["b.weight", "a.weight"]),\n        LayerSpec(Block),\n'
        '        TiedLayerSpec("t", Two, tied_weight_attr=["a.weight", "b.weight"]),\n        LayerSpec(nn.Linear, 8, 11),\n    ]\n',
        (('["a.weight", "b.weight"]', '["b.weight", "a.weight"]'),),
    ),
    "list in a variable": Case(both("TIED", before='TIED = ["wrod.weight"]'), (('["wrod.weight"]', WORD),)),
    "annotated variable": Case(both("TIED", before='TIED: list = ["wrod.weight"]'), (('["wrod.weight"]', WORD),)),
    "variable of a function": Case(
        both("tied").replace("    return [", '    tied = ["wrod.weight"]\n    return ['), (('["wrod.weight"]', WORD),)
    ),
    "variable that is changed later": Case(
        both("TIED", before='TIED = ["word.weight"]\nTIED.append("scale")'), (("tied_weight_attr=TIED", f"tied_weight_attr={WORD}"),)
    ),
    "variable of two keys": Case(
        "TIED = ['word.weight']\n"
        + both("TIED").replace("        LayerSpec(Block),\n", '        TiedLayerSpec("t", Two, tied_weight_attr=TIED),\n'),
        (("Two, tied_weight_attr=TIED", 'Two, tied_weight_attr=["a.weight", "b.weight"]'),),
        {"stages": [4]},
    ),
    "computed": Case(
        both("[name for name, _ in Embedding().named_parameters()]"),
        (("[name for name, _ in Embedding().named_parameters()]", WORD),),
    ),
    "sum of lists": Case(both('["word.weight"] + ["scale"]'), (('["word.weight"] + ["scale"]', WORD),)),
    "two places": Case(both('["wrod.weight"]', "['word']"), (('["wrod.weight"]', WORD), ("['word']", "['word.weight']"))),
    "two classes": Case(
        both('["weight"]', '["wait"]').replace("Embedding, forward_fn=logits", "Head"), (('["wait"]', '["linear.weight"]'), ('["weight"]', WORD))
    ),
    "property twice": Case(both('["weight", "word.weight"]'), (('["weight", "word.weight"]', WORD),)),
    "transposed": Case(both('["flipped"]'), (('["flipped"]', WORD),)),
    "tuple": Case(both('("wrod.weight",)'), (('("wrod.weight",)', WORD),)),
    "tuple over several lines": Case(
        both('(\n            "wrod.weight",\n            "scale",  # not the head\n        )'),
        (("=(\n", "=[\n"), ("wrod", "word"), ('            "scale",  # not the head\n        )', "        ]")),
    ),
    "bare tuple": Case(both("TIED", before='TIED = "word.weight", "scale"'), (('"word.weight", "scale"', WORD),)),
    "string": Case(both('"wrod.weight"'), (('="wrod.weight"', f"={WORD}"),)),
    "set": Case(both('{"word.weight", "scale"}', forward_fn="scaled_logits"), (('{"word.weight", "scale"}', '["scale", "word.weight"]'),)),
    "generator": Case(both('(n for n in ["word.weight"])'), (('(n for n in ["word.weight"])', WORD),)),
    "no argument": Case(
        both("X", forward_fn="scaled_logits").replace(", tied_weight_attr=X", "").replace("Embedding", "Embedding, 8"),
        (
            ('("embed", Embedding, 8)', '("embed", Embedding, 8, tied_weight_attr=["word.weight", "scale"])'),
            ("forward_fn=scaled_logits)", 'forward_fn=scaled_logits, tied_weight_attr=["word.weight", "scale"])'),
        ),
    ),
    "no argument, over several lines": Case(
        both("['weight', 'scale']", "X", forward_fn="scaled_logits").replace(
            'TiedLayerSpec("embed", Embedding, forward_fn=scaled_logits, tied_weight_attr=X)',
            'TiedLayerSpec(\n            "embed",\n            Embedding,\n            forward_fn=scaled_logits,  # the head\n        )',
        ),
        (("  # the head\n", '  # the head\n            tied_weight_attr=["word.weight", "scale"],\n'), ("['weight', ", "['word.weight', ")),
    ),
    "comments in the list": Case(
        both('[\n            # what both use\n            "word.weight",  # the table\n            "scale",  # not the head\n        ]'),
        (('            "scale",  # not the head\n', ""),),
    ),
    "comments in the list, no comma at the end": Case(
        both('[\n            "word.weight",  # the table\n            "scale"  # not the head\n        ]'),
        (('            "scale"  # not the head\n', ""),),
    ),
    "one line each, too short": Case(
        both('[\n            "word.weight",  # the table\n        ]', forward_fn="scaled_logits"),
        (('  # the table\n', '  # the table\n            "scale",\n'),),
    ),
    "tabs": Case(
        both('[\n\t"wrod.weight",\t# tabs\n\t"scale",\n]').replace("    return", "\treturn"),
        (('"wrod.weight"', '"word.weight"'), ('\n\t"scale",', "")),
    ),
    "helper": Case(
        "def tie(names, forward_fn=None):\n    return TiedLayerSpec('embed', Embedding, forward_fn=forward_fn, tied_weight_attr=names)\n\n"
        "def layers():\n    return [tie(['wrod.weight']), LayerSpec(Block), tie(names=['word'], forward_fn=logits)]\n",
        (("['wrod.weight']", "['word.weight']"), ("['word']", "['word.weight']")),
    ),
    "helper with a default": Case(
        "def tie(forward_fn=None, *, names=('wrod.weight',)):\n"
        "    return TiedLayerSpec('embed', Embedding, forward_fn=forward_fn, tied_weight_attr=names)\n\n"
        "def layers():\n    return [tie(), LayerSpec(Block), tie(logits)]\n",
        (("('wrod.weight',)", "['word.weight']"),),
    ),
    "helper with **kwargs": Case(
        "def tie(cls, **kwargs):\n    return TiedLayerSpec('embed', cls, **kwargs)\n\n"
        "def layers():\n    return [tie(Embedding), LayerSpec(Block), tie(Embedding, forward_fn=scaled_logits)]\n",
        (
            ("tie(Embedding)", "tie(Embedding, tied_weight_attr=['word.weight', 'scale'])"),
            ("forward_fn=scaled_logits)", "forward_fn=scaled_logits, tied_weight_attr=['word.weight', 'scale'])"),
        ),
    ),
    "default of the target": Case(
        both("names", before='TIED = ["wrod.weight"]').replace("def layers()", "def layers(names=TIED)"), (('["wrod.weight"]', WORD),)
    ),
    "nested function": Case(
        "def layers(names=['wrod.weight']):\n    def end(forward_fn):\n"
        "        return TiedLayerSpec('embed', Embedding, forward_fn=forward_fn, tied_weight_attr=names)\n"
        "    return [end(None), LayerSpec(Block), end(logits)]\n",
        (("['wrod.weight']", "['word.weight']"),),
    ),
    "loop": Case(
        "def layers():\n    found = [LayerSpec(nn.Embedding, 11, 8)]\n    for _ in range(3):\n"
        "        found.append(TiedLayerSpec('t', Two, tied_weight_attr=['a.weight']))\n    return [*found, LayerSpec(nn.Linear, 8, 11)]\n",
        (("['a.weight']", "['a.weight', 'b.weight']"),),
    ),
    "comprehension": Case(
        "def layers():\n    tied = [TiedLayerSpec('t', Two, tied_weight_attr=('a.weight', 'b.wait')) for _ in range(3)]\n"
        "    return [LayerSpec(nn.Embedding, 11, 8), *tied, LayerSpec(nn.Linear, 8, 11)]\n",
        (("('a.weight', 'b.wait')", "['a.weight', 'b.weight']"),),
    ),
    "PipelineModule": Case(
        "class Pipe(PipelineModule):\n    def __init__(self, names=['wrod.weight']):\n        super().__init__(layers=[\n"
        "            TiedLayerSpec('embed', Embedding, tied_weight_attr=names),\n            LayerSpec(Block),\n"
        "            TiedLayerSpec('embed', Embedding, forward_fn=logits, tied_weight_attr=names)], num_stages=2)\n",
        (("['wrod.weight']", "['word.weight']"),),
        target="Pipe",
    ),
    "subclass of TiedLayerSpec": Case(
        "class Tied(TiedLayerSpec):\n    def __init__(self, names, **more):\n"
        "        super().__init__('embed', Embedding, tied_weight_attr=names, **more)\n\n"
        "def layers():\n    return [Tied(['wrod.weight']), LayerSpec(Block), Tied(['word.weight'], forward_fn=logits)]\n",
        (("['wrod.weight']", "['word.weight']"),),
    ),
    "two keys": Case(
        both('["wrod.weight"]').replace("        LayerSpec(Block),\n", '        TiedLayerSpec("t.w", Two, tied_weight_attr=("a.weight", "b")),\n'),
        (('["wrod.weight"]', WORD), ('"t.w"', '"t_w"'), ('("a.weight", "b")', '["a.weight", "b.weight"]')),
        {"stages": [4]},
    ),
    "not ASCII": Case(both('["wrod.weight"]').replace("=[", "=  # größe ☃\n        [", 1), (('["wrod.weight"]', WORD),)),
    "on one line": Case(
        "def layers():\n    'ü'; return [TiedLayerSpec('ü', Embedding, tied_weight_attr=['wrod.weight']), LayerSpec(Block), "
        "TiedLayerSpec('ü', Embedding, forward_fn=logits, tied_weight_attr=['word'])]\n",
        (("['wrod.weight']", "['word.weight']"), ("['word']", "['word.weight']")),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run here, each with the user's modules imported anew."""
    from tiespec.jobs import JOBS

    def do(job: str, options: dict[str, Any], timeout: float, debug: bool) -> dict[str, Any]:
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]
        path = list(sys.path)
        try:
            return JOBS[job](options, lambda phase: None)
        finally:
            sys.path[:] = path

    monkeypatch.setattr(fix_session, "do", do)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change here more often than once in a second
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": true}}')


def fix(target: str = "layers", write: bool = False, format: str = "text", **options: Any) -> tuple[str, int]:
    planned, folder = plan(f"model.py:{target}", {"stages": [2], "partition": "uniform", **options}, None)
    text, status, remarks = fix_session.fixed(planned, folder, Wanted(format, (), True, False), False, write)
    sys.stderr.write(remarks)
    return text, status


def expected(source: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed(name: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    case = FIXED[name]
    file = write(PARTS + case.source)
    text, status = fix(case.target, write=True, **case.options)
    after = Path(file).read_text()
    assert after == PARTS + expected(case.source, case.changes), text
    assert status == 0, text
    assert text.splitlines()[-2] == "wrote model.py"
    assert text.endswith("no problems\n")
    assert capsys.readouterr().err == ""
    options = {"partition": "uniform", **case.options}
    assert check_target(f"model.py:{case.target}", Options(stages=tuple(options.pop("stages", [2])), **options)).ok


ENCODED = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "no newline at the end": lambda text: text.rstrip("\n").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "latin-1": lambda text: f"# -*- coding: latin-1 -*-\nNAME = 'größe'{text}".encode("latin-1"),
    "form feed": lambda text: text.replace("\ndef layers", "\n\f\ndef layers").encode(),
}
LONG = '[\n            "word.weight",  # both\n            "scale",\n            "frozen"\n        ]'


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("list", ['["wrod.weight"]', LONG])
def test_the_rest_of_the_file_stays_as_it_is(name: str, list: str, tmp_path: Path) -> None:
    right = WORD if list != LONG else '[\n            "word.weight",  # both\n        ]'
    file = tmp_path / "model.py"
    file.write_bytes(ENCODED[name](PARTS + both(list)))
    assert fix(write=True)[1] == 0
    assert file.read_bytes() == ENCODED[name](PARTS + both(right))


def test_only_a_diff_follows_the_report(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = PARTS + both('["wrod.weight"]', WORD).rstrip("\n")
    file = write(source)
    text, status = fix()
    report, diff = text.split("\n--- model.py\n")
    assert status == 1
    assert "TIE101" in report
    assert report.splitlines()[-1].startswith("model.py:layers: 1 tie, 4 layers, 2 stages: ")
    assert all(line[:1] in "+- @\\" for line in diff.splitlines())
    assert [line for line in diff.splitlines()[1:] if line[:1] in "+-"] == [
        '-        TiedLayerSpec("embed", Embedding, tied_weight_attr=["wrod.weight"]),',
        '+        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"]),',
    ]
    assert capsys.readouterr().err == "help: --fix --write writes the edits above\n"
    assert Path(file).read_text() == source
    (tmp_path / "fix.diff").write_text(f"--- model.py\n{diff}")
    subprocess.run(["patch", "-s", "-p0", "-i", "fix.diff"], cwd=tmp_path, check=True)
    assert Path(file).read_text() == source.replace("wrod", "word")


def test_a_fixed_file_has_nothing_to_fix(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(PARTS + both('["wrod.weight"]'))
    fix(write=True)
    after = Path(file).read_text()
    capsys.readouterr()
    text, status = fix(write=True)
    assert (status, capsys.readouterr().err) == (0, "nothing to fix\n")
    assert text == "model.py:layers: 1 tie, 4 layers, 2 stages: no problems\n"
    assert Path(file).read_text() == after


UNSURE = {
    "the parameter is used by one layer alone": both(WORD).replace('"embed"', '"lone"', 1),
    "the two keys are two short words": both(WORD).replace('"embed"', '"proj_q"', 1).replace('"embed"', '"proj_k"'),
    "the classes have other sizes": both(WORD).replace("Embedding, forward", "Embedding, 16, forward"),
    "the list comes from the TARGET": both("names").replace("def layers()", "def build(names)") + "\ndef layers():\n    return eval(\"build(['wrod.weight'])\")\n",
    "a loop over two lists": "def layers():\n    found = []\n    for key, cls, names in (('a', Two, ['a.wait']), ('b', nn.Linear, ['wait'])):\n"
    "        args = (8, 8) if cls is nn.Linear else ()\n"
    "        found += [TiedLayerSpec(key, cls, *args, tied_weight_attr=names) for _ in range(2)]\n"
    "    return [LayerSpec(nn.Embedding, 11, 8), *found, LayerSpec(nn.Linear, 8, 11)]\n",
    "ambiguous arguments": "def tie(*args, **more):\n    return TiedLayerSpec(*args, **dict(more))\n"
    "def layers():\n    return [tie('e', Embedding), LayerSpec(Block), tie('e', Embedding, forward_fn=scaled_logits)]\n",
    "the usage is unknown": both('["wrod.weight"]').replace("logits", "unknown") + "\ndef unknown(m, x):\n    raise ValueError\n",
    "the key is computed": both(WORD).replace('"embed"', '".".join("ab")'),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSURE)
def test_where_nothing_is_sure_nothing_is_changed(name: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(PARTS + UNSURE[name])
    text, status = fix(write=True, **({"stages": [6]} if "loop" in name else {}))
    assert status == 1
    assert Path(file).read_text() == PARTS + UNSURE[name]
    said = capsys.readouterr().err
    assert said.startswith("no fix: model.py:")
    assert "@@" not in text
    assert "wrote" not in text


def test_what_can_be_fixed_is_fixed_beside_what_cannot(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    last = 'TiedLayerSpec("embed", Embedding, forward_fn=logits'
    source = both('["wrod.weight"]').replace(last, f'TiedLayerSpec("other", Two, tied_weight_attr=["a.wait"]),\n        {last}')
    file = write(PARTS + source)
    text, status = fix(write=True)
    assert status == 1
    assert Path(file).read_text() == PARTS + source.replace("wrod", "word")
    assert 'TIE202 lone-key (key "other"' in capsys.readouterr().err
    assert "wrote model.py\nmodel.py:layers: 1 tie, 5 layers, 2 stages: " in text


def test_one_key_is_fixed_where_all_together_are_not(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    norm = '        TiedLayerSpec("norm", nn.BatchNorm1d, 6, tied_weight_attr=["wait", "bias"]),\n'
    source = both('["wrod.weight"]').replace("        LayerSpec(Block),\n", norm)
    file = write(PARTS + source)
    assert fix(write=True, stages=[4])[1] == 1
    assert Path(file).read_text() == PARTS + source.replace("wrod", "word")
    assert {line.split()[3] for line in capsys.readouterr().err.splitlines()} >= {"TIE101", "TIE304"}


def test_an_ignore_below_a_list_that_gets_shorter(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    alone = '        TiedLayerSpec("alone", Two, tied_weight_attr=["a.weight"]),  # tiespec: ignore[TIE202]\n        TiedLayerSpec("embed", Embedding, f'
    source = both(LONG, WORD).replace('        TiedLayerSpec("embed", Embedding, f', alone)
    file = write(PARTS + source)
    assert fix(write=True)[1] == 0
    assert Path(file).read_text() == PARTS + source.replace(LONG, '[\n            "word.weight",  # both\n        ]')


def test_a_file_that_changes_meanwhile(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(write(PARTS + both('["wrod.weight"]')))
    changed = file.read_text() + "# another line\n"
    monkeypatch.setattr(fix_session, "unified", lambda *arguments: str(file.write_text(changed)))
    with pytest.raises(OutputError, match="was changed while it was checked"):
        fix(write=True)
    assert file.read_text() == changed


def test_layers_of_an_imported_module(write: Write) -> None:
    write(
        "from parts.ends import ends\nfrom parts.base import *\n\ndef layers():\n    first, last = ends()\n    return [first, LayerSpec(Block), last]\n"
    )
    write("", "parts/__init__.py")
    write(PARTS, "parts/base.py")
    ends = "from .base import *\n\nTIED = ['word']\n\ndef ends():\n    return [\n        TiedLayerSpec('embed', Embedding, forward_fn=f, tied_weight_attr=TIED) for f in (None, logits)\n    ]\n"
    file = write(ends, "parts/ends.py")
    text, status = fix(write=True)
    assert status == 0, text
    assert "--- parts/ends.py" in text
    assert Path(file).read_text() == ends.replace("['word']", "['word.weight']")


def test_two_targets_that_share_a_list(write: Write, tmp_path: Path) -> None:
    second = "\ndef more():\n    return [layers()[0], LayerSpec(Block), layers()[3]]\n"
    file = write(PARTS + both("TIED", before='TIED = ["word"]') + second)
    write(
        "[tool.tiespec]\ntargets = [{target = 'model.py:layers', stages = [2]}, {target = 'model.py:more', stages = [2]}]\n",
        "pyproject.toml",
    )
    planned, folder = plan(None, {}, None)
    text, status, _ = fix_session.fixed(planned, folder, Wanted("text", (), False, False), False, True)
    assert status == 0, text
    assert Path(file).read_text() == PARTS + both("TIED", before=f"TIED = {WORD}") + second


def test_a_diff_beside_a_format_for_machines(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(PARTS + both('["wrod.weight"]'))
    text, status = fix(format="concise")
    assert status == 1
    assert all(line.startswith("model.py:") for line in text.splitlines())
    assert "+++ model.py" in capsys.readouterr().err


def test_a_protected_file(write: Write) -> None:
    file = Path(write(PARTS + both('["wrod.weight"]')))
    file.chmod(0o444)
    with pytest.raises(OutputError, match="write-protected") as caught:
        fix(write=True)
    assert (caught.value.file, caught.value.help.partition(";")[0]) == (str(file), "nothing was changed")
    assert file.read_text() == PARTS + both('["wrod.weight"]')
    assert fix()[1] == 1


def test_a_link_stays_one(write: Write, tmp_path: Path) -> None:
    real = Path(write(PARTS + both('["wrod.weight"]'), "real/model.py"))
    (tmp_path / "model.py").symlink_to(real)
    assert fix(write=True)[1] == 0
    assert (tmp_path / "model.py").is_symlink()
    assert real.read_text() == PARTS + both(WORD)


def test_an_ignored_finding_is_not_fixed(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(PARTS + both('["wrod.weight"]'))
    assert fix(ignore=["TIE101"])[1] == 0
    assert capsys.readouterr().err == "nothing to fix\n"


def test_an_ignored_gap_is_not_filled(write: Write) -> None:
    """What the user does not want to be tied stays untied."""
    file = write(PARTS + both('["wrod.weight"]', forward_fn="scaled_logits"))
    assert fix(ignore=["TIE302"], write=True)[1] == 0
    assert Path(file).read_text() == PARTS + both(WORD, forward_fn="scaled_logits")


def test_a_call_of_which_only_the_line_is_known() -> None:
    """As before Python 3.11."""
    source = parse("model.py", b"x = [\n  TiedLayerSpec('a', f(1)), g(),\n  tie(1),\n  tie(1), tie(2),\n]\n")
    assert source is not None
    found = [find_call(source, CallSite("model.py", line)) for line in (1, 2, 3, 4)]
    assert [None if call is None else source.module.code_for_node(call) for call in found] == [
        None, "TiedLayerSpec('a', f(1))", "tie(1)", None,
    ]  # fmt: skip


def test_what_is_no_python() -> None:
    assert parse("model.ipynb", b'{"cells": [') is None
    assert parse("model.py", b"# -*- coding: none -*-\n") is None


KEYS = {
    ("embbed", "embed"): True, ("token_embedding", "token_embeddings"): True, ("embed", "embedd"): True,
    ("proj_q", "proj_k"): False, ("encoder", "decoder"): False, ("block_1", "block_2"): False, ("norm", "embed"): False,
    ("embed", "embed_norm"): False,
}  # fmt: skip


@pytest.mark.parametrize("keys", KEYS, ids=" ".join)
def test_which_keys_are_misspellings(keys: tuple[str, str]) -> None:
    assert (_misspelled(keys[0], list(keys)) is not None) == KEYS[keys]


LISTS = {
    ('["a", "b"]', "b"): '["b"]',
    ('["a", "b"]', "a"): '["a"]',
    ('["a", "b", ]', "a"): '["a", ]',
    ("['a', 'b']", "abc"): "['a', 'b', 'c']",
    ('["a", "b"]', "ba"): '["b", "a"]',
    ('["a",\n "b"]', "a"): '["a"]',
    ('["a",  # A\n "b"]', "a"): '["a",  # A\n ]',
    ('["a",  # A\n "b"]', "b"): '["b"]',
    ('[\n  "a", "b",\n]', "a"): '[\n  "a",\n]',
    ('[\n  "a", "b"\n]', "a"): '[\n  "a"\n]',
    ('[\n  "a"  # A\n]', "ab"): '[\n  "a",  # A\n  "b"\n]',
    ('("a")', "b"): '["b"]',
    ("'a'", "b"): '["b"]',
    ("'a'", ("it's",)): '["it\'s"]',
    ('["a", *more]', "ab"): '["a", "b"]',
    ("[]", "a"): '["a"]',
}


@pytest.mark.parametrize("case", LISTS, ids=str)
def test_lists(case: tuple[str, Any]) -> None:
    text, names = case
    source = parse("model.py", f"x = {text}\n".encode())
    assert source is not None
    start, end = source.span(value := source.module.body[0].body[0].value)  # type: ignore[union-attr, index, attr-defined]
    assert source.text(start, end) == text
    assert list_in_place(source, value, list(names), '"') == LISTS[case]


def test_an_overlay_is_read_in_place_of_the_file(write: Write, tmp_path: Path) -> None:
    import importlib
    import inspect

    file, other = (
        write("def f():\n    return 1\n", "overlaid_module.py"),
        write("# -*- coding: latin-1 -*-\ndef f():\n    return 2\n", "other"),
    )
    sys.path.insert(0, str(tmp_path))
    with overlaid({os.path.realpath(file): other}):
        module = importlib.import_module("overlaid_module")
        assert module.f() == 2
        assert inspect.getsource(module.f) == "def f():\n    return 2\n"
    assert importlib.reload(module).f() == 1
    assert Path(file).read_text() == "def f():\n    return 1\n"


def test_a_diff_of_lines_without_a_newline() -> None:
    assert (
        unified("a", b"x\r\ny", b"x\r\nz")
        == "--- a\n+++ a\n@@ -1,2 +1,2 @@\n x\r\n-y\n\\ No newline at end of file\n+z\n\\ No newline at end of file\n"
    )


def test_the_command_line(write: Write, tmp_path: Path) -> None:
    """Each in a process: the files are written as the user sees it, and stdout is what was asked for."""
    file = write(PARTS + both('["wrod.weight"]'))
    shown = tiespec("check", "model.py", "--stages", "2", "--format", "json", "--fix", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stdout.startswith("{")
    assert shown.stdout.endswith("}\n")
    assert '+        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"]),' in shown.stderr
    done = tiespec("check", "model.py", "--stages", "2", "--fix", "--write", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("wrote model.py\nmodel.py:layers: 1 tie, 4 layers, 2 stages: no problems\n")
    assert Path(file).read_text() == PARTS + both(WORD)


def test_write_alone_is_a_usage_error(write: Write, tmp_path: Path) -> None:
    write(PARTS + both('["wrod.weight"]'))
    done = tiespec("check", "model.py", "--write", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --write needs --fix" in done.stderr


def test_libcst_is_loaded_only_to_fix() -> None:
    code = "import sys, tiespec.cli, tiespec.fix_session, tiespec.jobs; print('libcst' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
