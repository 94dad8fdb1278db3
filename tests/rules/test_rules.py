"""Each rule finds its fault and nothing else, and nothing in its twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import order_differs, run, same
from tests.helpers import CASES, ROOT, tiespec
from tests.rules.models import EXAMPLES, PARTS, Example
from tiespec.checking import Options, check_target
from tiespec.report.rules import rule_index, rule_page
from tiespec.rules import RULES
from tiespec.verdict import Report

Write = Callable[..., str]

NOT_HERE = {"TIE901", "TIE902"}  # tested below: they need a spec file, a comment


def checked(file: str, options: dict[str, Any], target: str = "layers", **more: Any) -> Report:
    settings = {"stages": 2, "partition": "uniform", **options, **more}
    stages = settings.pop("stages")
    return check_target(f"{file}:{target}", Options(stages=(stages,), **settings))


def groups(source: str, file: str) -> dict[str, str]:
    return {"param_groups": f"{file}:parameter_groups"} if "def parameter_groups" in source else {}


def shown(report: Report) -> str:
    return "\n".join(f"{f.code} {f.consequence} {f.key} {f.path}: {f.message}" for f in report.findings)


def test_every_rule_has_an_example() -> None:
    assert {example.code for example in EXAMPLES} | NOT_HERE == set(RULES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.id)
def test_fails(example: Example, write: Write) -> None:
    file = write(PARTS + example.fails)
    report = checked(file, example.options, **groups(example.fails, file))
    assert report.codes == [example.code], shown(report)
    assert {f.path for f in report.findings} - {None} == set(example.paths), shown(report)
    for finding in report.findings:
        assert (finding.key, finding.consequence) == (example.key, example.consequence)
        assert finding.help
        assert not finding.message.endswith(".")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.id)
def test_passes(example: Example, write: Write) -> None:
    file = write(PARTS + example.passes)
    report = checked(file, example.passing, **groups(example.passes, file))
    assert report.findings == [], shown(report)
    assert report.notes == []


@pytest.mark.parametrize("name", sorted(folder.name for folder in CASES.iterdir()))
def test_case(name: str) -> None:
    case = json.loads((CASES / name / "case.json").read_text())
    file, _, target = case["target"].partition(":")
    options = {
        "stages": case["stages"],
        "data_parallel": case["dp"],
        "partition": case["partition"],
        "ds_config": case["ds_config"],
    }
    report = checked(str(CASES / name / file), options, target)
    expected = case["expect"]
    assert report.codes == expected["codes"], shown(report)
    assert {f.key for f in report.findings} <= {expected["key"]}
    assert {f.consequence for f in report.findings} <= {case["real"]["outcome"]}
    assert _paths(report) == set(expected["paths"])


def _paths(report: Report) -> set[str]:
    facts = [fact for f in report.findings if f.code == "TIE301" for fact in f.facts]
    return {path for path in (*(f.path for f in report.findings), *(fact.path for fact in facts)) if path}


def test_spec_drift(write: Write) -> None:
    source = (
        PARTS
        + "def layers(vocabulary=11):\n    return pipeline(tie(['word.weight'], None, Embedding, vocabulary), tie(['word.weight'], logits, Embedding, vocabulary))\n"
    )
    file = write(source)
    spec = str(write("", "tiespec.json"))
    assert tiespec("generate", f"{file}:layers", "-o", spec, "--force").returncode == 0
    assert checked(file, {"spec": spec}).findings == []
    report = checked(file, {"spec": spec}, "layers(vocabulary=12)")
    assert report.codes == ["TIE901"]
    assert report.findings[0].key == "embed"
    assert "word.weight: shape was [11, 8], is [12, 8]" in report.findings[0].message


FAULT = "def layers():\n    return pipeline(tie(['word.weight']),\n        TiedLayerSpec('embbed', Embedding, forward_fn=logits, tied_weight_attr=['word.weight']),{}\n    )\n"


def test_inline_ignores(write: Write) -> None:
    assert checked(write(PARTS + FAULT.format("")), {}).codes == ["TIE202"]
    assert checked(write(PARTS + FAULT.format("  # tiespec: ignore[TIE202]")), {}).findings == []
    assert checked(write(PARTS + FAULT.format("  # tiespec: ignore")), {}).findings == []
    report = checked(write(PARTS + FAULT.format("  # tiespec: ignore[TIE203, TIE202]")), {})
    assert [(f.code, f.message) for f in report.findings] == [("TIE902", "ignore[TIE203] silences nothing")]
    assert report.findings[0].line == len(PARTS.splitlines()) + 3


def test_ignores_of_a_key(write: Write) -> None:
    file = write(PARTS + FAULT.format(""))
    assert checked(file, {"by_key": {"embbed": ("TIE202",)}}).findings == []
    report = checked(file, {"by_key": {"embed": ("TIE202",), "embbed": ("TIE2",)}})
    assert [(f.code, f.key) for f in report.findings] == [("TIE902", "embed")]


def test_select_ignore_and_severities(write: Write) -> None:
    file = write(PARTS + FAULT.format(""))
    assert checked(file, {"select": ("TIE4",)}).findings == []
    assert checked(file, {"ignore": ("TIE2",)}).findings == []
    report = checked(file, {"severities": {"TIE202": "note"}})
    assert report.codes == ["TIE202"]
    assert report.ok
    assert not checked(file, {}).ok


@pytest.mark.parametrize("code", RULES)
def test_the_documentation_of_a_rule_is_its_docstring(code: str) -> None:
    """Renew the pages with ``python -m tests.renew``."""
    assert (ROOT / "docs" / "rules" / f"{code}.md").read_text() == rule_page(RULES[code])
    text = RULES[code].text
    assert "Fails" in text
    assert "Right" in text
    assert "\n    " in text


def test_the_index_of_the_rules() -> None:
    assert (ROOT / "docs" / "rules" / "README.md").read_text() == rule_index(RULES.values())
    assert {p.stem for p in (ROOT / "docs" / "rules").glob("TIE*.md")} == set(RULES)


PERMUTED = """
class Permuted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 6).permute(1, 0, 2))
    def forward(self, x):
        return x + self.weight.sum()
def layers():
    step = lambda: tie("weight", None, Permuted)
    return [LayerSpec(nn.Embedding, 11, 8), step(), LayerSpec(Block), step(), LayerSpec(nn.Linear, 8, 11)]
"""


def test_a_permuted_parameter_whose_last_dimension_is_innermost_is_taken(write: Write) -> None:
    """gloo takes a tensor without gaps, and a view as bytes asks for the last dimension alone (seen on 0.19.8)."""
    file = write(PARTS + PERMUTED)
    assert checked(file, {}).codes == []
    seen = run(Path(file), "layers")
    assert (seen.outcome, same(seen.copies([1, 3], "weight"))) == ("ok", True)


def test_what_is_in_one_stage_needs_no_order(write: Write) -> None:
    """A set, and keys on a release that walks over a set of them."""
    names = '{"linear.weight", "linear.bias"}'
    block = f"tie({names}, None, Block, key='a')"
    rows = (
        f"[LayerSpec(nn.Embedding, 11, 8), {block}, {block}, LayerSpec(Block), LayerSpec(Block), LayerSpec(nn.Linear, 8, 11)]"
    )
    file = write(PARTS + f"def layers():\n    return {rows}\n")
    assert checked(file, {}).codes == []
    assert checked(file, {"partition": "type:Embedding|Linear"}).codes == []
    flat = "tie('matrix', None, Flat, key={!r})"
    keys = f"[LayerSpec(nn.Embedding, 11, 8), {flat.format('a')}, {flat.format('a')}, {flat.format('b')}, {flat.format('b')}, LayerSpec(nn.Linear, 8, 11)]"
    source = f"class Flat(Block):\n    matrix = property(lambda self: self.linear.weight)\ndef layers():\n    return {keys}\n"
    assert checked(write(PARTS + source), {"deepspeed": "0.16.5"}).codes == []
    seeds = order_differs(["a", "b"])
    assert run(Path(write(PARTS + source)), "layers", release="0.16.5", hash_seeds=seeds).outcome == "ok"


def test_a_frozen_embedding_with_max_norm_is_put_back_by_no_optimizer(write: Write) -> None:
    example = next(e for e in EXAMPLES if e.id == "TIE304 max_norm, ZeRO-1")
    frozen = example.fails.replace("max_norm=0.5)\n", "max_norm=0.5)\n        self.word.weight.requires_grad_(False)\n")
    report = checked(write(PARTS + frozen), example.options)
    assert [(f.code, f.consequence) for f in report.findings] == [("TIE304", "diverge")], shown(report)


BUFFER = """
class Shifted(Embedding):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(8))
    def forward(self, tokens):
        STEP
        return super().forward(tokens) + self.shift
def layers():
    names = ["word.weight", "shift"]
    return pipeline(tie(names, None, Shifted), tie(names, logits, Shifted))
"""


WORDS = """
class Words(nn.Embedding):
    def forward(self, tokens):
        raise ValueError("no input that is made up")
"""


def test_a_listed_buffer_is_a_fault_where_it_changes(write: Write) -> None:
    """The first broadcast makes it equal on all stages, and that is all that one that stays needs (seen on 0.19.8)."""
    assert checked(write(PARTS + BUFFER.replace("STEP", "pass")), {}).codes == []
    changing = PARTS + BUFFER.replace("STEP", "self.shift += 1")
    assert checked(write(changing), {}).codes == ["TIE102", "TIE304"]
    unknown = checked(
        write(changing.replace("def example_inputs", "def no_inputs").replace("nn.Embedding(", "Words(") + WORDS), {}
    )
    assert "TIE102" in [note.code for note in unknown.notes], shown(unknown)


def test_a_shared_buffer_that_changes_is_an_undeclared_tie(write: Write) -> None:
    source = (
        "def layers():\n    norm = nn.BatchNorm1d(6, affine=False)\n"
        "    return [nn.Embedding(11, 8), norm, Block(), norm, nn.Linear(8, 11)]\n"
    )
    report = checked(write(PARTS + source), {})
    assert report.codes == ["TIE301"], shown(report)
    assert {f.path for f in report.findings} == {"running_mean", "running_var", "num_batches_tracked"}
    assert "one buffer" in report.findings[0].message


MODEL = """
class Config:
    tie_word_embeddings, vocab_size = True, 99
class Model(nn.Module):
    _tied_weights_keys = KEYS
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.word, self.mid, self.head = nn.Embedding(11, 8), Block(), nn.Linear(8, 11, bias=False)
        TIE
    def get_input_embeddings(self):
        return self.word
class Step(nn.Module):
    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name
    def forward(self, x):
        return getattr(self.model, self.name)(x)
def layers():
    model = Model()
    return [Step(model, name) for name in ("word", "mid", "head")]
"""


@pytest.mark.parametrize("keys", ["['head.weight']", "{'head.weight': 'word.weight'}"])
def test_a_tie_that_the_model_declares(keys: str, write: Write) -> None:
    """As a list of names (transformers 4) and as target and source (transformers 5)."""
    source = (PARTS + MODEL).replace("KEYS", keys)
    if keys.startswith("{"):
        source = source.replace("TIE\n", "self.all_tied_weights_keys = self._tied_weights_keys\n        TIE\n")
    report = checked(write(source.replace("        TIE\n", "")), {})
    assert report.codes == ["TIE305"], shown(report)
    assert "Model declares them as tied" in report.findings[0].message
    assert report.findings[0].path == "model.head.weight"
    tied = checked(write(source.replace("TIE\n", "self.head.weight = self.word.weight\n")), {})
    assert tied.codes == ["TIE301"], shown(tied)  # the model is right, the pipeline loses it
