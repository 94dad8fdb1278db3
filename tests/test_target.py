"""Every way in which public files write a pipeline can be a TARGET."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule

import tiespec
from tests.helpers import HEAD, generated, lists
from tiespec.errors import TargetError, UsageError

Write = Callable[..., str]

PARTS = (
    HEAD
    + """
class Embedding(nn.Module):
    def __init__(self, vocabulary=11, hidden=4):
        super().__init__()
        self.word = nn.Embedding(vocabulary, hidden)
    def forward(self, tokens):
        return self.word(tokens)

def logits(embedding, hidden):
    return F.linear(hidden, embedding.word.weight)

def specs(names=("word.weight",), **kwargs):
    names = list(names)
    return [
        TiedLayerSpec("embed", Embedding, tied_weight_attr=names, **kwargs),
        LayerSpec(nn.Linear, 4, 4),
        TiedLayerSpec("embed", Embedding, forward_fn=logits, tied_weight_attr=names, **kwargs),
    ]
"""
)
TIED = {"embed": ["word.weight"]}

IDIOMS = {
    "function": ("def build(depth=1):\n    return specs()", "build"),
    "function with arguments": (
        "def build(names, depth):\n    assert depth == -2\n    return specs(names)",
        "build(['word.weight'], depth=-2)",
    ),
    "list": ("layers = specs()", "layers"),
    "tuple": ("layers = tuple(specs())", "layers"),
    "class method": ("class Model:\n    @classmethod\n    def layers(cls):\n        return specs()", "Model.layers"),
    "static method": ("class Model:\n    @staticmethod\n    def layers():\n        return specs()", "Model.layers"),
    "method on a constructed model": (
        "class Model(nn.Module):\n    def __init__(self, depth):\n        super().__init__()\n"
        "        self.depth = depth\n    def to_layers(self):\n        return specs()",
        "Model(depth=3).to_layers",
    ),
    "PipelineModule subclass": (
        "class Pipe(PipelineModule):\n    def __init__(self, num_stages=2, **kwargs):\n"
        "        super().__init__(layers=specs(), num_stages=num_stages, loss_fn=None, **kwargs)",
        "Pipe",
    ),
    "PipelineModule subclass whose constructor goes on": (
        "class Pipe(PipelineModule):\n    def __init__(self):\n        super().__init__(layers=specs(), num_stages=2)\n"
        "        self.first = self.forward_funcs[0]",
        "Pipe",
    ),
    "PipelineModule subclass that needs a config": (
        "from dataclasses import dataclass, field\n@dataclass\nclass Config:\n    names: list = field(default_factory=list)\n"
        "class Pipe(PipelineModule):\n    def __init__(self, config, model):\n        assert isinstance(model, nn.Module)\n"
        "        super().__init__(layers=specs(config.names), num_stages=1)",
        "Pipe(Config(names=['word.weight']), model=Embedding())",
    ),
    "function that returns a PipelineModule": (
        "def build():\n    return PipelineModule(layers=specs(), num_stages=2)",
        "build",
    ),
    "function that returns a class": (
        "def choose():\n    class Pipe(PipelineModule):\n        def __init__(self):\n"
        "            super().__init__(layers=specs(), num_stages=2)\n    return Pipe",
        "choose",
    ),
    "init_distributed and LOCAL_RANK at import": (
        "import os, deepspeed, torch.distributed as dist\ndeepspeed.init_distributed()\nrank = int(os.environ['LOCAL_RANK'])\n"
        "torch.cuda.set_device(rank)\nassert dist.get_rank() == 0 and dist.get_world_size() == 1\ndist.barrier()\n"
        "def build():\n    return specs()",
        "build",
    ),
    "init_process_group in the constructor": (
        "import torch.distributed as dist\ndef build():\n    dist.init_process_group('nccl')\n    dist.new_group([0])\n    return specs()",
        "build",
    ),
    "functions and lambdas between layers": (
        "import functools\ndef scale(x, by):\n    return x * by\ndef build():\n    first, *rest = specs()\n"
        "    return [lambda x: x, first, functools.partial(scale, by=2), *rest, lambda x: x.float()]",
        "build",
    ),
    "a typename that is a factory function": (
        "def make():\n    return Embedding()\ndef build():\n    layers = specs()\n"
        "    layers[0] = TiedLayerSpec('embed', make, tied_weight_attr=['word.weight'])\n    return layers",
        "build",
    ),
    "a dotted name": ("class namespace:\n    class inner:\n        layers = specs()", "namespace.inner.layers"),
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idiom(idiom: str, write: Write) -> None:
    source, expression = IDIOMS[idiom]
    assert lists(generated(f"{write(PARTS + source)}:{expression}").spec) == TIED


PLAIN = {
    "module class": "Embedding",
    "module class with arguments": "Embedding(vocabulary=3)",
    "module instance": "instance",
}


@pytest.mark.parametrize("idiom", PLAIN)
def test_plain_module(idiom: str, write: Write) -> None:
    spec = generated(f"{write(PARTS + 'instance = Embedding()')}:{PLAIN[idiom]}").spec
    assert lists(spec) == {"Embedding": ["word.weight"]}
    assert spec.ties[0].layers == []


def test_sequential_that_ties_its_ends_gets_a_proposed_key(write: Write) -> None:
    source = (
        HEAD
        + "net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))\nnet[2].weight = net[0].weight"
    )
    spec = generated(f"{write(source)}:net").spec
    assert spec.proposals is not None
    assert [p.by_layer for p in spec.proposals] == [{"0": ["weight"], "2": ["weight"]}]


def test_a_live_model_in_every_layer_ties_nothing_but_what_is_used_twice(write: Write) -> None:
    source = PARTS + (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 4)\n"
        "        self.mid = nn.Linear(4, 4)\n        self.head = nn.Linear(4, 11, bias=False)\n"
        "class Step(nn.Module):\n    def __init__(self, model, name):\n        super().__init__()\n        self.model, self.name = model, name\n"
        "    def forward(self, x):\n        return getattr(self.model, self.name)(x)\n"
        "def build():\n    model = Model()\n    return [Step(model, 'word'), Step(model, 'mid'), Step(model, 'head')]\n"
        "def tied():\n    model = Model()\n    model.head.weight = model.word.weight\n"
        "    return [Step(model, 'word'), Step(model, 'mid'), Step(model, 'head')]"
    )
    file = write(source)
    assert generated(f"{file}:build").spec.proposals is None
    proposals = generated(f"{file}:tied").spec.proposals
    assert proposals is not None
    assert [p.layers for p in proposals] == [[0, 2]]


def test_setup_runs_before_the_target_is_imported(write: Write) -> None:
    write(
        "import sys, types\ndef stub():\n    sys.modules['megatron_stub'] = types.SimpleNamespace(args={'hidden': 4})",
        "stubs.py",
    )
    file = write(
        "from megatron_stub import args\n" + PARTS + "def build():\n    assert args['hidden'] == 4\n    return specs()"
    )
    with pytest.raises(TargetError, match="megatron_stub"):
        generated(f"{file}:build")
    assert lists(generated(f"{file}:build", setup=f"{Path(file).parent}/stubs.py:stub").spec) == TIED


def test_neighbours(write: Write) -> None:
    write(PARTS, "parts.py")
    file = write("from parts import specs\ndef build():\n    return specs()")
    assert lists(generated(f"{file}:build").spec) == TIED


@pytest.mark.parametrize("marker", ["pkg/__init__.py", None])
def test_package_relative_neighbours(marker: str | None, write: Write) -> None:
    if marker:
        write("", marker)
    write(PARTS, "pkg/parts.py")
    file = write("from .parts import specs\ndef build():\n    return specs()", "pkg/model.py")
    assert lists(generated(f"{file}:build").spec) == TIED


def test_module_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(PARTS + "layers = specs()", "package_of_a_test/model.py")
    monkeypatch.chdir(Path(file).parent.parent)
    assert lists(generated("package_of_a_test.model:layers").spec) == TIED


def test_a_file_with_the_name_of_a_standard_module(write: Write) -> None:
    assert lists(generated(write(PARTS + "def build():\n    return specs()", "types.py")).spec) == TIED


def test_transformers_config(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 1,
        "n_embd": 8,
        "n_head": 2,
        "vocab_size": 13,
        "architectures": ["GPT2LMHeadModel"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = generated(f"hf:{tmp_path}").spec
    assert "transformer.wte.weight" in spec.ties[0].tied_weight_attr
    assert spec.ties[0].key == "GPT2LMHeadModel"


def test_a_constructor_that_refuses_meta_is_built_on_the_cpu(write: Write) -> None:
    source = PARTS + (
        "class Stubborn(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.weight = nn.Parameter(torch.ones(4, 4))\n"
        "        self.scale = float(self.weight.sum().item())\n    def forward(self, x):\n        return x @ self.weight\n"
        "def build():\n    layers = specs()\n    layers[1] = LayerSpec(Stubborn)\n    return layers\n"
        "def built():\n    layers = specs()\n    layers[1] = Stubborn()\n    return layers\n"
    )
    file = write(source)
    for name in ("build", "built"):
        made = generated(f"{file}:{name}")
        assert lists(made.spec) == TIED
        assert any("CPU" in note for note in made.notes), made.notes


def test_a_factory_is_noted_because_deepspeed_refuses_it(write: Write) -> None:
    source, expression = IDIOMS["a typename that is a factory function"]
    notes = generated(f"{write(PARTS + source)}:{expression}").notes
    assert any("make is not a module class" in note for note in notes)


MISTAKES = {
    "missing.py": (UsageError, "there is no file"),
    "{file}:": (UsageError, "ends with ':'"),
    "{file}:bild": (UsageError, "has no 'bild'"),
    "{file}:build(": (UsageError, "cannot parse"),
    "{file}:build()[0]": (UsageError, "not a name and not a call"),
    "{file}:build(__import__('os').system('true') or 1)": (UsageError, "not allowed"),
    "{file}:build(*[1])": (UsageError, "not allowed"),
    "{file}:build(x for x in ())": (UsageError, "not allowed"),
    "{file}:build(**{{}})": (UsageError, "not allowed"),
    "{file}:build(depth=1, width=2)": (TargetError, "unexpected keyword argument 'width'"),
    "{file}:needs": (TargetError, "missing a required argument: 'config'"),
    "{file}:number": (TargetError, "got a int"),
    "{file}:number()": (UsageError, "cannot be called"),
    "{file}:empty": (TargetError, "the list of layers is empty"),
    "{file}:wrong": (TargetError, "layer 1 is a str"),
    "{file}": (UsageError, "give the one you mean"),
    "no_such_module_here:x": (UsageError, "there is no module"),
    "hf:": (UsageError, "names no config"),
    "": (UsageError, "names no file"),
}


@pytest.mark.parametrize("target", MISTAKES)
def test_mistake(target: str, write: Write) -> None:
    source = PARTS + (
        "def build(depth=1):\n    return specs()\ndef needs(config):\n    return specs()\n"
        "number = 3\nempty = []\nwrong = [nn.Linear(1, 1), 'x']\ndef other():\n    return specs()\n"
    )
    error, message = MISTAKES[target]
    with pytest.raises(error) as caught:
        generated(target.format(file=write(source)))
    assert message in str(caught.value)
    assert caught.value.help


def test_signature_and_nearest_name_are_shown(write: Write) -> None:
    file = write(PARTS + "def build(config, depth=1):\n    return specs()")
    with pytest.raises(TargetError) as caught:
        generated(f"{file}:build")
    assert "build(config, depth=1)" in caught.value.help
    assert caught.value.line == len((PARTS + "def").splitlines())
    with pytest.raises(UsageError) as unknown:
        generated(f"{file}:biuld")
    assert unknown.value.help == "did you mean build?"


def test_candidates_are_listed_as_commands(write: Write) -> None:
    file = write(PARTS + "def one():\n    return specs()\ndef two():\n    return specs()")
    with pytest.raises(UsageError) as caught:
        generated(file)
    assert f"{file}:one" in caught.value.help
    assert f"{file}:two" in caught.value.help


def _patchable() -> tuple[object, ...]:
    functions = (LayerSpec.__init__, PipelineModule.__init__, dist.init_process_group, torch.cuda.set_device)
    return (dict(os.environ), functions, torch.get_default_device())


def test_the_process_is_left_as_it_was_found(write: Write) -> None:
    source, expression = IDIOMS["init_distributed and LOCAL_RANK at import"]
    torch.manual_seed(3)
    before = _patchable()
    states = (random.getstate(), torch.random.get_rng_state())
    path = list(sys.path)
    tiespec.generate(f"{write(PARTS + source)}:{expression}")
    assert _patchable() == before
    assert random.getstate() == states[0]
    assert torch.equal(torch.random.get_rng_state(), states[1])
    assert not dist.is_initialized()
    assert sys.path == path


def test_setup_may_be_in_the_file_itself(write: Write) -> None:
    file = write(
        "ARGS = None\ndef setup():\n    global ARGS\n    ARGS = 1\n"
        + PARTS
        + "def build():\n    assert ARGS == 1\n    return specs()"
    )
    assert lists(generated(f"{file}:build", setup=f"{file}:setup").spec) == TIED


def test_setup_may_set_the_command_line(write: Write) -> None:
    source = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--hidden', required=True)\nargs = parser.parse_args()\n"
    file = write(source + PARTS + "def build():\n    return specs()")
    setup = write("import sys\ndef setup():\n    sys.argv += ['--hidden', '4']\n", "setup_of_a_test.py")
    with pytest.raises(TargetError) as caught:
        generated(f"{file}:build")
    assert "sys.argv in --setup" in caught.value.help
    assert lists(generated(f"{file}:build", setup=f"{setup}:setup").spec) == TIED


@pytest.mark.parametrize("content", [b"", b"# caf\xe9\n", b"\xef\xbb\xbf# with a mark\n"])
def test_a_file_without_anything_is_no_internal_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(content)
    with pytest.raises((UsageError, TargetError)):
        generated(str(tmp_path / "model.py"))


def test_a_pipeline_that_starts_a_process_group_is_a_candidate(write: Write) -> None:
    source = PARTS + (
        "import deepspeed\nclass Pipe(PipelineModule):\n    def __init__(self):\n        deepspeed.init_distributed()\n"
        "        super().__init__(layers=specs(), num_stages=2)\n"
    )
    assert lists(generated(write(source)).spec) == TIED


def test_an_unbound_method_is_explained(write: Write) -> None:
    file = write(PARTS + "class Model(nn.Module):\n    def to_layers(self):\n        return specs()")
    with pytest.raises(TargetError) as caught:
        generated(f"{file}:Model.to_layers")
    assert "write Model().to_layers" in caught.value.help
