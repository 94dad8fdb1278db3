"""Which names are listed, which are left out and why, and what is said beside them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from torch import nn

import tiespec
from tests.helpers import HEAD, ROOT, generated, lists, reasons
from tiespec.analyse import analyse_object
from tiespec.errors import UsageError
from tiespec.generation import Generated

Write = Callable[..., str]

PARTS = (
    HEAD
    + """
class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(9, 4)
        self.scale = nn.Parameter(torch.ones(4))
    def forward(self, tokens):
        return self.word(tokens) * self.scale
class Alias(Embedding):
    def __init__(self):
        super().__init__()
        self.table = self.word
    @property
    def weight(self):
        return self.word.weight
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 9, bias=False)
    def forward(self, x):
        return self.out(x)
class HeadWithAlias(Head):
    @property
    def weight(self):
        return self.out.weight
def logits(m, x):
    return F.linear(x, m.word.weight)
def both(m, x):
    return F.linear(x * m.scale, m.word.weight)
def square(m, x):
    return m.word.weight[:4].mm(x.reshape(-1, 4).t()).t()
"""
)


def of(write: Write, source: str, stages: int | None = None, **filters: Any) -> Generated:
    return generated(f"{write(PARTS + source)}:layers", stages=stages, given=("int64[2,3]<9",), **filters)


def test_parameters_used_at_every_layer_are_listed(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=both)]")
    assert lists(made.spec) == {"e": ["scale", "word.weight"]}
    assert made.remarks == ()


def test_what_is_unused_at_one_end_is_left_out(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=logits)]")
    assert lists(made.spec) == {"e": ["word.weight"]}
    assert reasons(made.spec, "e") == {"scale": "unused at layer 1"}


def test_aliases_of_one_parameter_are_listed_once(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Alias), TiedLayerSpec('e', Alias, forward_fn=logits)]")
    assert lists(made.spec) == {"e": ["word.weight"]}
    assert reasons(made.spec, "e")["table.weight"] == "same parameter as word.weight"


def test_a_name_common_to_different_classes_is_preferred(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Alias), TiedLayerSpec('e', HeadWithAlias)]")
    assert lists(made.spec) == {"e": ["weight"]}


def test_without_a_common_name_the_list_is_given_by_layer(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Head)]")
    assert lists(made.spec) == {"e": {"0": ["word.weight"], "1": ["out.weight"]}}
    assert "paired by their shape alone" in made.remarks[0].message
    assert made.spec.names("e", layer=1) == ["out.weight"]


def test_the_lists_as_written_pair_by_position(write: Write) -> None:
    source = "layers = [TiedLayerSpec('e', Embedding, tied_weight_attr=['word.weight']), TiedLayerSpec('e', Head, tied_weight_attr=['out.weight'])]"
    made = of(write, source)
    assert lists(made.spec) == {"e": {"0": ["word.weight"], "1": ["out.weight"]}}
    assert made.remarks == ()


def test_a_parameter_used_by_two_of_three_has_no_right_list(write: Write) -> None:
    source = (
        "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=both), lambda x: x[..., :4], "
        "TiedLayerSpec('e', Embedding, forward_fn=logits)]"
    )
    made = of(write, source)
    assert reasons(made.spec, "e") == {"scale": "unused at layer 3"}
    told = [r for r in made.remarks if "no list is right" in r.message]
    assert [r.message.partition(" but")[0] for r in told] == ["scale gets a gradient at layers 0, 1"]
    assert "tiespec patch" in told[0].help


FROZEN = """
class Frozen(Embedding):
    def __init__(self):
        super().__init__()
        self.word.weight.requires_grad_(False)
"""


def test_frozen_at_every_layer(write: Write) -> None:
    made = of(write, FROZEN + "layers = [TiedLayerSpec('e', Frozen), TiedLayerSpec('e', Frozen, forward_fn=both)]")
    assert lists(made.spec) == {"e": ["scale"]}
    assert reasons(made.spec, "e") == {"word.weight": "frozen"}


def test_frozen_at_one_layer(write: Write) -> None:
    made = of(write, FROZEN + "layers = [TiedLayerSpec('e', Frozen), TiedLayerSpec('e', Embedding, forward_fn=both)]")
    assert reasons(made.spec, "e") == {"word.weight": "frozen at layer 0"}
    assert any("frozen at layer 0 and trained elsewhere" in r.message for r in made.remarks)


def test_lone_key(write: Write) -> None:
    made = of(write, "layers = [TiedLayerSpec('e', Embedding), Head()]")
    assert [r.message for r in made.remarks] == ["only layer 0 has this key, so nothing is tied"]


def test_lost_on_resume(write: Write) -> None:
    source = (
        "class Ends(Embedding):\n    def forward(self, x):\n        return self.word(x)\n"
        "layers = [TiedLayerSpec('e', Ends), TiedLayerSpec('e', Ends, forward_fn=both)]"
    )
    made = of(write, source)
    assert lists(made.spec) == {"e": ["word.weight"]}
    assert ["will not come back" in r.message for r in made.remarks] == [True]
    assert of(write, source, stages=1).remarks == ()


def test_two_classes_in_one_stage(write: Write) -> None:
    source = "layers = [TiedLayerSpec('e', Alias), TiedLayerSpec('e', HeadWithAlias)]"
    assert of(write, source, stages=2).remarks == ()
    assert "stock DeepSpeed runs the class of layer 0 at both" in of(write, source, stages=1).remarks[0].message


def test_more_stages_than_layers(write: Write) -> None:
    with pytest.raises(UsageError, match="cannot cut 2 layers into 3 stages"):
        of(write, "layers = [TiedLayerSpec('e', Alias), TiedLayerSpec('e', HeadWithAlias)]", stages=3)


COMPOSED = f"{ROOT}/examples/composed.py:ComposedModule"
ALL = ["linear.weight", "linear.bias", "layer_norm.weight", "layer_norm.bias"]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ALL),
        ({"min_numel": 17}, ["linear.weight"]),
        ({"max_numel": 16}, ALL[1:]),
        ({"include": ("*.weight",)}, [ALL[0], ALL[2]]),
        ({"exclude": ("linear.*",)}, ALL[2:]),
        ({"include": ("*.weight",), "exclude": ("linear*",)}, [ALL[2]]),
        ({"min_numel": 10**6}, []),
    ],
)
def test_filters(filters: dict[str, Any], names: list[str]) -> None:
    spec = generated(COMPOSED, **filters).spec
    assert spec["ComposedModule"] == names
    assert {p.path for p in spec.ties[0].left_out} == set(ALL) - set(names)
    assert all(p.reason for p in spec.ties[0].left_out)


def test_a_filter_that_leaves_out_what_must_be_tied_is_told(write: Write) -> None:
    source = "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=both)]"
    made = of(write, source, min_numel=5)
    assert lists(made.spec) == {"e": ["word.weight"]}
    assert "its copies drift apart" in made.remarks[0].message


def test_the_example_says_why_each_name_is_left_out() -> None:
    spec = generated(f"{ROOT}/examples/gpt.py").spec
    assert spec["embed"] == ["word.weight"]
    assert reasons(spec, "embed") == dict.fromkeys(["position.weight", "norm.weight", "norm.bias"], "unused at layer 13")


def test_proposed_keys_are_valid_and_new(write: Write) -> None:
    source = (
        "def layers():\n    word, items = nn.Embedding(9, 4), nn.Linear(4, 4)\n    head = nn.Linear(4, 9, bias=False)\n"
        "    head.weight = word.weight\n"
        "    return [nn.Sequential(word), nn.Sequential(items), nn.Sequential(items), head]"
    )
    proposals = of(write, source).spec.proposals
    assert proposals is not None
    assert {p.key: p.by_layer for p in proposals} == {
        "sequential": {"0": ["0.weight"], "3": ["weight"]},
        "sequential_2": {"1": ["0.weight", "0.bias"], "2": ["0.weight", "0.bias"]},
    }


def test_the_library_takes_objects() -> None:
    assert tiespec.generate(nn.Linear(2, 3))["Linear"] == ["weight", "bias"]
    assert tiespec.generate(COMPOSED, min_numel=17)["ComposedModule"] == ["linear.weight"]


def test_the_library_calls_what_needs_no_arguments(write: Write) -> None:
    class Module(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            assert self.weight.is_meta

    def build() -> PipelineModule:
        return PipelineModule(layers=[TiedLayerSpec("e", nn.Linear, 4, 4), TiedLayerSpec("e", nn.Linear, 4, 4)], num_stages=2)

    assert tiespec.generate(Module)["Module"] == ["weight", "bias"]
    assert tiespec.generate(build)["e"] == ["weight", "bias"]


def test_another_shape_at_another_layer_is_said(write: Write) -> None:
    made = of(
        write, "layers = [TiedLayerSpec('e', nn.Embedding, 9, 4), LayerSpec(Head), TiedLayerSpec('e', nn.Embedding, 12, 4)]"
    )
    assert [p.reason for p in made.spec.ties[0].left_out] == [
        "has another shape at layer 2: 12x4",
        "has another shape at layer 0: 9x4",
    ]
    assert any("nothing is tied by this key" in r.message for r in made.remarks)


def test_a_glob_that_matches_nothing_is_noted() -> None:
    assert "--exclude word/* matches no parameter" in generated(COMPOSED, exclude=("word/*",)).notes


def test_with_one_stage_nothing_is_said_of_drifting_copies(write: Write) -> None:
    source = "layers = [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=both)]"
    assert of(write, source, stages=1, min_numel=5).remarks == ()


def test_a_callable_of_the_library_finds_the_example_inputs_beside_it(write: Write) -> None:
    source = "layers = lambda: [TiedLayerSpec('e', Embedding), TiedLayerSpec('e', Embedding, forward_fn=logits)]\n"
    file = Path(write(PARTS + source + "def example_inputs():\n    return torch.ones(2, 3).long(), None\n", "beside.py"))
    sys.path.insert(0, str(file.parent))
    beside = importlib.import_module("beside")
    assert analyse_object(beside.layers, "layers").usage.source == "example_inputs()"
    assert tiespec.generate(beside.layers)["e"] == ["word.weight"]
    del beside.example_inputs
    assert analyse_object(beside.layers, "layers").usage.source.startswith("derived")


def test_remarks_of_the_library_are_warnings() -> None:
    with pytest.warns(UserWarning, match="only layer 0 has this key"):
        tiespec.generate([TiedLayerSpec("e", nn.Linear, 4, 4)])
