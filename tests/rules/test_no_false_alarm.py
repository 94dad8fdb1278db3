"""What public files do, and what is no fault: no finding, for two stages and for every number of stages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tiespec
from tests.rules.models import PARTS
from tests.rules.test_rules import shown
from tiespec.checking import Options, check_target

HEALTHY = {
    "a property": "def layers():\n    return pipeline(tie('weight'), tie('weight', logits))",
    "a second registration": (
        "class Second(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.table = self.word\n"
        "def layers():\n    return pipeline(tie('table.weight', None, Second), tie('table.weight', logits, Second))"
    ),
    "different names at one position": (
        "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.out = nn.Linear(8, 11, bias=False)\n"
        "    def forward(self, x):\n        return self.out(x)\n"
        "def layers():\n    return pipeline(tie('word.weight'), tie('out.weight', None, Head))"
    ),
    "different classes with a common name": (
        "def layers():\n    return pipeline(tie('weight', None, nn.Embedding, 11, 8), tie('weight', None, nn.Linear, 8, 11, bias=False))"
    ),
    "a subclass with more parameters": (
        "class Head(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.bias = nn.Parameter(torch.zeros(11))\n"
        "    def forward(self, x):\n        return F.linear(x, self.word.weight, self.bias)\n"
        "def layers():\n    return pipeline(tie('word.weight'), tie('word.weight', None, Head))"
    ),
    "functions between layers": (
        "def layers():\n    first, *blocks, last = pipeline(tie('weight'), tie('weight', logits))\n"
        "    return [lambda x: x, first, lambda x: x * 2, *blocks, torch.relu, last, lambda x: x.float()]"
    ),
    "three layers of a key": (
        "NAMES = ['linear.weight', 'linear.bias']\n"
        "def layers():\n    again = lambda: tie(NAMES, None, Block, key='block')\n"
        "    return [LayerSpec(nn.Embedding, 11, 8), again(), again(), LayerSpec(Block), again(), LayerSpec(nn.Linear, 8, 11)]"
    ),
    "both layers in one stage": (
        "def layers():\n    return [tie('weight'), tie('weight', again), LayerSpec(Block), LayerSpec(nn.Linear, 8, 11)]\n"
        "def again(m, x):\n    return x @ m.word.weight.t() @ m.word.weight"
    ),
    "frozen at every layer": (
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        "def layers():\n    return pipeline(tie('weight', None, Frozen), tie('weight', logits, Frozen))"
    ),
    "buffers that stay as they are": (
        "class Rotary(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('angles', torch.ones(8))\n"
        "    def forward(self, tokens):\n        return super().forward(tokens) * self.angles\n"
        "def layers():\n    return pipeline(tie('weight', None, Rotary), tie('weight', logits, Rotary))"
    ),
    "a live model whose parts are used once": (
        "class Step(nn.Module):\n    def __init__(self, model, name):\n        super().__init__()\n        self.model, self.name = model, name\n"
        "    def forward(self, x):\n        return getattr(self.model, self.name)(x)\n"
        "def layers():\n    model = nn.ModuleDict({'word': nn.Embedding(11, 8), 'mid': Block(), 'out': nn.Linear(8, 11)})\n"
        "    return [LayerSpec(Step, model, name) for name in model]"
    ),
    "one flat storage": (
        "def layers():\n    flat = torch.randn(22, 8)\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n"
        "    word.weight, head.weight = nn.Parameter(flat[:11]), nn.Parameter(flat[11:])\n    return [word, Block(), head]"
    ),
    "a key for a live tie": (
        "class Given(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.part = part\n"
        "    def forward(self, x):\n        return self.part(x)\n"
        "def layers():\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n    head.weight = word.weight\n"
        "    return pipeline(tie('part.weight', None, Given, word), tie('part.weight', None, Given, head))"
    ),
    "an untied config": (
        "class Config:\n    tie_word_embeddings, vocab_size = False, 11\n"
        "class Words(nn.Embedding):\n    def __init__(self, config):\n        super().__init__(config.vocab_size, 8)\n"
        "class Head(nn.Linear):\n    def __init__(self, config):\n        super().__init__(8, config.vocab_size, bias=False)\n"
        "def layers():\n    return pipeline(LayerSpec(Words, Config()), LayerSpec(Head, Config()))"
    ),
    "a GPT-2 of transformers, tied by a key": (
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "class Given(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.part = part\n"
        "    def forward(self, x):\n        return self.part(x)\n"
        "class Layer(Given):\n    def forward(self, x):\n        out = self.part(x)\n        return out[0] if isinstance(out, tuple) else out\n"
        "def layers():\n    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_head=2, n_layer=2, n_positions=16))\n"
        "    return [tie('part.weight', None, Given, model.transformer.wte), *(Layer(b) for b in model.transformer.h),\n"
        "            model.transformer.ln_f, tie('part.weight', None, Given, model.lm_head)]"
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("stages", [2, 3])
def test_no_finding(name: str, stages: int, write: Callable[..., str]) -> None:
    file = write(PARTS + HEALTHY[name])
    report = check_target(f"{file}:layers", Options(stages=(stages,), partition="uniform"))
    assert report.findings == [], shown(report)
    assert [note for note in report.notes if note.code] == []


@pytest.mark.parametrize("name", HEALTHY)
def test_no_finding_for_any_number_of_stages(name: str, write: Callable[..., str]) -> None:
    file = write(PARTS + HEALTHY[name])
    report = check_target(f"{file}:layers", Options())
    assert report.findings == [], shown(report)
    assert report.stages[0] == 1
    assert len(report.stages) == report.layers


def test_the_library(write: Callable[..., str]) -> None:
    file = write(PARTS + HEALTHY["a property"])
    assert tiespec.check(f"{file}:layers", stages=2).ok
    from torch import nn

    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    head.weight = word.weight
    report = tiespec.check([word, nn.Linear(8, 8), head], stages=[2, 3], input=["int64[2,4]<11"])
    assert report.codes == ["TIE301"]
    assert not report.ok
    assert "TIE301" in str(report)
    assert tiespec.check([word, nn.Linear(8, 8), head], stages=1).ok
    assert tiespec.check([word, head], ignore=["TIE301"]).ok
