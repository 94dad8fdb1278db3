"""For each rule a model that must fail with exactly its code, its twin that must pass, and what a real run of it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PARTS = """
import torch
import torch.nn.functional as F
from torch import nn
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

class Embedding(nn.Module):
    def __init__(self, vocabulary=11, hidden=8):
        super().__init__()
        self.word = nn.Embedding(vocabulary, hidden)
        self.scale = nn.Parameter(torch.rand(hidden) + 0.5)
    @property
    def weight(self):
        return self.word.weight
    def forward(self, tokens):
        return self.word(tokens) * self.scale

class Block(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
    def forward(self, x):
        return x + torch.tanh(self.linear(x))

def logits(m, x):
    return F.linear(x, m.word.weight)

def scaled_logits(m, x):
    return F.linear(x * m.scale, m.word.weight)

def tie(names, forward_fn=None, cls=Embedding, *args, key="embed", **kwargs):
    return TiedLayerSpec(key, cls, *args, forward_fn=forward_fn, tied_weight_attr=names, **kwargs)

def pipeline(first, last):
    return [first, LayerSpec(Block), LayerSpec(Block), last]

def loss_fn(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())

def example_inputs():
    tokens = torch.arange(14).reshape(2, 7) % 11
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
"""

BF16 = {"bf16": {"enabled": True}}
ZERO1 = {
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}


@dataclass(frozen=True)
class Example:
    """A failing model and its twin.

    ``copies`` are the (layer, path) that a run must show to be different (diverge), lost or overwritten.
    """

    code: str
    fails: str
    passes: str
    consequence: str
    key: str | None = "embed"
    paths: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    passing: dict[str, Any] = field(default_factory=dict)
    copies: tuple[tuple[int, str], ...] = ()
    real: bool = True
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.code} {self.name}".strip()


def _ends(first: str, last: str | None = None, before: str = "") -> str:
    return f"{before}\ndef layers():\n    return pipeline({first}, {last or first})\n"


GOOD = _ends('tie(["word.weight"])', 'tie(["word.weight"], logits)')
WORDS = ((0, "word.weight"), (3, "word.weight"))

SHARED = "class Two(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)\n    def forward(self, x):\n        return self.a(x) + torch.tanh(self.b(x))\n"
TWO = "[LayerSpec(nn.Embedding, 11, 8), {}, LayerSpec(Block), {}, LayerSpec(nn.Linear, 8, 11)]"


def _two(first: str, second: str) -> str:
    return f"{SHARED}\ndef layers():\n    return {TWO.format(first, second)}\n"


MIXED = """
class Scaled(Embedding):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(8) + 0.5)
    def forward(self, tokens):
        return super().forward(tokens) * self.gain
def ends(m, x):
    return F.linear(x * m.scale * m.gain, m.word.weight)
class Pipe(PipelineModule):
    def get_tied_weights_and_groups(self):
        found = super().get_tied_weights_and_groups()
        return ORDER
def layers():
    names = ["gain", "word.weight", "scale"]
    rows = pipeline(tie(names, None, Scaled), tie(names, ends, Scaled))
    return Pipe(layers=rows, num_stages=2, loss_fn=loss_fn, partition_method="uniform")
"""

EXAMPLES = (
    Example("TIE101", _ends('tie(["wrod.weight"])', 'tie(["wrod.weight"], logits)'), GOOD, "crash", paths=("wrod.weight",)),
    Example("TIE102", _ends('tie(["word"])', 'tie(["word"], logits)'), GOOD, "crash", paths=("word",), name="module"),
    Example(
        "TIE102",
        "class Flipped(Embedding):\n    @property\n    def flipped(self):\n        return self.word.weight.t()\n"
        + _ends('tie(["flipped"], None, Flipped)', 'tie(["flipped"], logits, Flipped)'),
        _ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "diverge",
        paths=("flipped",),
        copies=WORDS,
        name="transpose",
    ),
    Example(
        "TIE102",
        "class Flipped(Embedding):\n    @property\n    def flipped(self):\n        return self.word.weight.t().contiguous()\n"
        + _ends('tie(["flipped"], None, Flipped)', 'tie(["flipped"], logits, Flipped)'),
        _ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "crash",
        paths=("flipped",),
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
        name="transpose, bf16",
    ),
    Example(
        "TIE103",
        GOOD,
        _ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "crash",
        paths=("word.weight",),
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
    ),
    Example(
        "TIE104",
        "class Alias(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.table = self.word\n"
        + _ends('tie(["word.weight", "table.weight"], None, Alias)', 'tie(["word.weight", "table.weight"], logits, Alias)'),
        "class Alias(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.table = self.word\n"
        + _ends('tie(["table.weight"], None, Alias)', 'tie(["table.weight"], logits, Alias)'),
        "wrong-gradient",
        paths=("word.weight",),
        copies=WORDS,
    ),
    Example(
        "TIE105",
        _ends('tie(n for n in ["word.weight"])', 'tie((n for n in ["word.weight"]), logits)'),
        _ends('tie(("word.weight",))', 'tie(("word.weight",), logits)'),
        "diverge",
        copies=WORDS,
        name="generator",
    ),
    Example("TIE105", _ends("tie(None)", "tie(None, logits)"), GOOD, "crash", name="None"),
    Example(
        "TIE105",
        _ends('tie({"word.weight", "scale"})', 'tie({"word.weight", "scale"}, scaled_logits)'),
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "crash",
        real=False,  # whether two processes order a set alike is chance
        name="set",
    ),
    Example(
        "TIE106",
        _ends('tie(["weight", "scale"])', 'tie(["weight", "scale"], scaled_logits)'),
        _ends('tie("weight")', 'tie("weight", logits)'),
        "crash",
        options={"deepspeed": "0.11.1"},
        passing={"deepspeed": "0.11.1"},
        real=False,  # does not import with a torch of today
    ),
    Example(
        "TIE107",
        "class Sparse(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, sparse=True)\n"
        + _ends('tie(["word.weight"], None, Sparse)', 'tie(["word.weight"], logits, Sparse)'),
        GOOD,
        "hang",
        paths=("word.weight",),
        name="sparse",
    ),
    Example(
        "TIE107",
        "class Transposed(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight = nn.Parameter(torch.randn(8, 11).t())\n"
        + _ends('tie(["word.weight"], None, Transposed)', 'tie(["word.weight"], logits, Transposed)'),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="view with gaps",
    ),
    Example(
        "TIE107",
        "class Transposed(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight = nn.Parameter(torch.randn(8, 11).t())\n"
        + _ends('tie(["weight"], None, Transposed)', 'tie(["weight"], logits)'),
        _ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "diverge",
        paths=("word.weight",),
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
        copies=WORDS,
        name="transpose at one end, 0.16.5",
    ),
    Example(
        "TIE107",
        "class Sliced(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight = nn.Parameter(torch.randn(11, 16)[:, ::2])\n"
        + _ends('tie(["word.weight"], None, Sliced)', 'tie(["word.weight"], logits, Sliced)'),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="slice of columns",
    ),
    Example(
        "TIE107",
        "class Turned(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.table = nn.Parameter(torch.randn(11, 8).t())\n"
        "    def forward(self, x):\n        return x @ self.table\n"
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(Turned))\n",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n",
        "crash",
        key=None,
        paths=("table",),
        options={"stages": 1},
        passing={"stages": 1},
        name="view with gaps, one stage and no tie",
    ),
    Example(
        "TIE107",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.LazyLinear, 11))\n",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n",
        "crash",
        key=None,
        paths=("weight", "bias"),
        options={"stages": 1},
        passing={"stages": 1},
        name="lazy, one stage and no tie",
    ),
    Example(
        "TIE107",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8, sparse=True), LayerSpec(nn.Linear, 8, 11))\n",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n",
        "crash",
        key=None,
        paths=("weight",),
        options={"ds_config": ZERO1},
        passing={"ds_config": ZERO1},
        name="sparse, ZeRO-1 and no tie",
    ),
    Example(
        "TIE108",
        'def layers():\n    return pipeline(TiedLayerSpec("embed", Embedding, tied_weight_attrs=["word.weight"]), tie(["word.weight"], logits))',
        GOOD,
        "crash",
    ),
    Example(
        "TIE201",
        _ends('tie(["word.weight"], key="keys")', 'tie(["word.weight"], logits, key="keys")'),
        GOOD,
        "crash",
        key="keys",
    ),
    Example(
        "TIE201",
        _ends('tie(["word.weight"], key=7)', 'tie(["word.weight"], logits, key=7)'),
        GOOD,
        "crash",
        key="7",
        name="int",
    ),
    Example(
        "TIE202",
        _ends('tie(["word.weight"])', 'tie(["word.weight"], logits, key="embbed")'),
        GOOD,
        "diverge",
        key="embbed",
        paths=("word.weight",),
        copies=WORDS,
    ),
    Example(
        "TIE203",
        _two(
            'tie(["a.weight", "b.weight", "a.bias", "b.bias"], None, Two)',
            'tie(["b.weight", "a.weight", "a.bias", "b.bias"], None, Two)',
        ),
        _two(
            'tie(["a.weight", "b.weight", "a.bias", "b.bias"], None, Two)',
            'tie(["a.weight", "b.weight", "a.bias", "b.bias"], None, Two)',
        ),
        "diverge",
        paths=("a.weight", "b.weight"),
        copies=((1, "a.weight"), (3, "a.weight")),
        name="order",
    ),
    Example(
        "TIE203",
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight"], scaled_logits)'),
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "hang",
        paths=("scale",),
        name="length",
    ),
    Example(
        "TIE204",
        _ends('tie(["word.weight"])', 'tie(["word.weight"], logits, Embedding, 13)'),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="shape",
    ),
    Example(
        "TIE204",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + _ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits)'),
        GOOD,
        "hang",
        paths=("word.weight",),
        name="frozen",
    ),
    Example(
        "TIE204",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + _ends('tie(["word.weight", "scale"], None, Frozen)', 'tie(["word.weight", "scale"], scaled_logits)'),
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "crash",
        paths=("word.weight",),
        name="frozen before another name",
    ),
    Example(
        "TIE204",
        _ends(
            'tie(["word.weight"])',
            'tie(["word.weight"], logits, Half)',
            "class Half(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.to(torch.bfloat16)\ndef logits(m, x):\n    return F.linear(x, m.word.weight.float())\n",
        ),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="dtype",
    ),
    Example(
        "TIE204",
        _ends(
            'tie(["word.weight"])',
            'tie(["word.weight"], logits, Double)',
            "class Double(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.double()\ndef logits(m, x):\n    return F.linear(x.to(m.word.weight.dtype), m.word.weight)\n",
        ),
        GOOD,
        "diverge",
        paths=("word.weight",),
        options={"ds_config": {**BF16, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}},
        passing={"ds_config": BF16},
        copies=WORDS,
        name="wider dtype, bf16",
    ),
    Example(
        "TIE204",
        "class Step(nn.Module):\n    def __init__(self, rows):\n        super().__init__()\n        self.weight = nn.Parameter(torch.randn(rows, 32 // rows))\n"
        "    def forward(self, x):\n        return x + self.weight.sum()\n"
        "def layers():\n    step = lambda rows: tie('weight', None, Step, rows)\n"
        "    return [LayerSpec(nn.Embedding, 11, 8), step(4), LayerSpec(Block), step(8), LayerSpec(nn.Linear, 8, 11)]\n",
        "class Step(nn.Module):\n    def __init__(self, rows):\n        super().__init__()\n        self.weight = nn.Parameter(torch.randn(rows, 32 // rows))\n"
        "    def forward(self, x):\n        return x + self.weight.sum()\n"
        "def layers():\n    step = lambda rows: tie('weight', None, Step, rows)\n"
        "    return [LayerSpec(nn.Embedding, 11, 8), step(4), LayerSpec(Block), step(4), LayerSpec(nn.Linear, 8, 11)]\n",
        "diverge",
        paths=("weight",),
        copies=((1, "weight"), (3, "weight")),
        name="another shape of the same size",
    ),
    Example(
        "TIE205",
        _ends('tie("weight")', "final", "def final(x):\n    return x\n").replace(
            'return pipeline(tie("weight"), final)',
            'return [tie("weight"), tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm"), LayerSpec(Block), tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm"), tie("weight", logits)]',
        ),
        _ends('tie("weight")', 'tie("weight", logits)'),
        "hang",
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
        real=False,  # whether two processes order a set alike is chance
    ),
    Example(
        "TIE205",
        _ends('tie("weight")', "final", "def final(x):\n    return x\n").replace(
            'return pipeline(tie("weight"), final)',
            'norm = lambda: tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm")\n'
            '    return [tie("weight"), LayerSpec(Block), LayerSpec(Block), norm(), norm(), tie("weight", logits)]',
        ),
        _ends('tie("weight")', 'tie("weight", logits)'),
        "hang",
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
        real=False,
        name="of other stages",
    ),
    Example(
        "TIE206",
        "class Twice(Block):\n    def forward(self, x):\n        return 2 * super().forward(x)\nNAMES = ['linear.weight', 'linear.bias']\n"
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), tie(NAMES, None, Block, key='block'), tie(NAMES, None, Twice, key='block'), LayerSpec(nn.Linear, 8, 11)]\n",
        "NAMES = ['linear.weight', 'linear.bias']\n"
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), tie(NAMES, None, Block, key='block'), tie(NAMES, None, Block, key='block'), LayerSpec(nn.Linear, 8, 11)]\n",
        "wrong-forward",
        key="block",
        paths=("linear.weight",),
        options={"stages": 1},
        passing={"stages": 1},
    ),
    Example(
        "TIE206",
        "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.table = nn.Linear(8, 11, bias=False)\n    def forward(self, x):\n        return self.table(x)\n"
        "def layers():\n    return pipeline(tie(['word.weight']), tie(['table.weight'], None, Head))\n",
        "def layers():\n    return pipeline(tie(['word.weight']), tie(['word.weight'], logits))\n",
        "crash",
        paths=("word.weight",),
        options={"stages": 1},
        passing={"stages": 1},
        name="raises",
    ),
    Example(
        "TIE301",
        "def layers():\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n    head.weight = word.weight\n    return pipeline(word, head)\n",
        "def layers():\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n    return pipeline(word, head)\n",
        "diverge",
        key=None,
        paths=("weight",),
        copies=((0, "weight"), (3, "weight")),
        name="object",
    ),
    Example(
        "TIE301",
        "def layers():\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n    head.weight = nn.Parameter(word.weight.data)\n    return pipeline(word, head)\n",
        "def layers():\n    flat = torch.randn(22, 8)\n    word, head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\n"
        "    word.weight, head.weight = nn.Parameter(flat[:11]), nn.Parameter(flat[11:])\n    return pipeline(word, head)\n",
        "diverge",
        key=None,
        paths=("weight",),
        copies=((0, "weight"), (3, "weight")),
        name="storage",
    ),
    Example(
        "TIE302",
        _ends('tie(["word.weight"])', 'tie(["word.weight"], scaled_logits)'),
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "diverge",
        paths=("scale",),
        copies=((0, "scale"), (3, "scale")),
    ),
    Example(
        "TIE303",
        "def embedded(m, x):\n    return m(x)\n" + _ends('tie(["word.weight"], embedded)', 'tie(["word.weight"], logits)'),
        GOOD,
        "lost-on-resume",
        paths=("word.weight", "scale"),
        options={"stages": 1},
        passing={"stages": 1},
        copies=((0, "word.weight"), (0, "scale")),
        name="one stage",
    ),
    Example(
        "TIE303",
        "class Ends(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.final_norm = nn.LayerNorm(8)\n"
        "def norm_and_logits(m, x):\n    return logits(m, m.final_norm(x))\n"
        + _ends('tie(["word.weight"], None, Ends)', 'tie(["word.weight"], norm_and_logits, Ends)'),
        "def layers():\n    return [tie(['word.weight']), LayerSpec(Block), LayerSpec(nn.LayerNorm, 8), tie(['word.weight'], logits)]\n",
        "lost-on-resume",
        paths=("final_norm.weight", "final_norm.bias"),
        copies=((3, "final_norm.weight"),),
        name="head",
    ),
    Example(
        "TIE303",
        "def embed(m, tokens):\n    return m.word(tokens)\n"
        + _ends('tie(["word.weight"], embed)', 'tie(["word.weight"], logits)'),
        GOOD,
        "lost-on-resume",
        paths=("word.weight",),
        copies=((0, "word.weight"),),
        name="everywhere",
    ),
    Example(
        "TIE304",
        "class Normed(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(6)\n    def forward(self, x):\n        return self.norm(x)\n"
        "NAMES = ['norm.weight', 'norm.bias']\n"
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), tie(NAMES, None, Normed), LayerSpec(Block), tie(NAMES, None, Normed), LayerSpec(nn.Linear, 8, 11)]\n",
        "NAMES = ['weight', 'bias']\n"
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), tie(NAMES, None, nn.LayerNorm, 8), LayerSpec(Block), tie(NAMES, None, nn.LayerNorm, 8), LayerSpec(nn.Linear, 8, 11)]\n",
        "diverge",
        paths=("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        copies=((1, "norm.running_mean"), (3, "norm.running_mean")),
    ),
    Example(
        "TIE304",
        "class Bounded(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, max_norm=0.5)\n"
        + _ends('tie(["word.weight"], None, Bounded)', 'tie(["word.weight"], logits, Bounded)'),
        GOOD,
        "diverge",
        paths=("word.weight",),
        copies=WORDS,
        name="max_norm",
    ),
    Example(
        "TIE304",
        "class Bounded(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, max_norm=0.5)\n"
        + _ends('tie(["word.weight"], None, Bounded)', 'tie(["word.weight"], logits, Bounded)'),
        GOOD,
        "wrong-forward",
        paths=("word.weight",),
        options={"ds_config": {"zero_optimization": {"stage": 1}}},
        passing={"ds_config": {"zero_optimization": {"stage": 1}}},
        real=False,  # tests/verify/test_outcomes.py
        name="max_norm, ZeRO-1",
    ),
    Example(
        "TIE305",
        "class Config:\n    tie_word_embeddings, vocab_size = True, 11\n"
        "class Words(nn.Embedding):\n    def __init__(self, config):\n        super().__init__(config.vocab_size, 8)\n"
        "class Head(nn.Linear):\n    def __init__(self, config):\n        super().__init__(8, config.vocab_size, bias=False)\n"
        "def layers():\n    return pipeline(LayerSpec(Words, Config()), LayerSpec(Head, Config()))\n",
        "class Config:\n    tie_word_embeddings, vocab_size = True, 11\n"
        "class Words(nn.Embedding):\n    def __init__(self, config):\n        super().__init__(config.vocab_size, 8)\n"
        "class Head(nn.Linear):\n    def __init__(self, config):\n        super().__init__(8, config.vocab_size, bias=False)\n"
        "CONFIG = Config()\ndef layers():\n    return pipeline(tie('weight', None, Words, CONFIG), tie('weight', None, Head, CONFIG))\n",
        "diverge",
        key=None,
        paths=("weight",),
        copies=((0, "weight"), (3, "weight")),
    ),
    Example(
        "TIE306",
        "class Given(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.part = part\n    def forward(self, x):\n        return self.part(x)\n"
        "WORD, HEAD = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\nnn.init.constant_(HEAD.weight, 0.25)\n"
        "def layers():\n    return pipeline(tie('part.weight', None, Given, WORD), tie('part.weight', None, Given, HEAD))\n",
        "class Given(nn.Module):\n    def __init__(self, part):\n        super().__init__()\n        self.part = part\n    def forward(self, x):\n        return self.part(x)\n"
        "WORD, HEAD = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)\nHEAD.weight = WORD.weight\n"
        "def layers():\n    return pipeline(tie('part.weight', None, Given, WORD), tie('part.weight', None, Given, HEAD))\n",
        "overwritten",
        paths=("part.weight",),
        copies=((3, "part.weight"),),
    ),
    Example(
        "TIE307",
        "def layers():\n    return pipeline(tie('weight', None, nn.Embedding, 11, 8), tie('weight', None, nn.Linear, 8, 11, bias=False))\n"
        "def parameter_groups(module):\n    kept = [p for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]\n"
        "    decayed = [p for p in module.parameters() if all(p is not k for k in kept)]\n"
        "    return [g for g in ({'params': kept, 'weight_decay': 0.0}, {'params': decayed, 'weight_decay': 0.5}) if g['params']]\n",
        "def layers():\n    return pipeline(tie('weight', None, nn.Embedding, 11, 8), tie('weight', None, nn.Linear, 8, 11, bias=False))\n"
        "def parameter_groups(module):\n    return [{'params': list(module.parameters()), 'weight_decay': 0.5}]\n",
        "diverge",
        paths=("weight",),
        copies=((0, "weight"), (3, "weight")),
    ),
    Example(
        "TIE307",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n"
        "def parameter_groups(module):\n    kept = [p for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]\n"
        "    decayed = [p for p in module.parameters() if all(p is not k for k in kept)]\n"
        "    return [g for g in ({'params': kept, 'weight_decay': 0.0}, {'params': decayed, 'weight_decay': 0.5}) if g['params']]\n",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n"
        "def parameter_groups(module):\n    return [{'params': list(module.parameters()), 'weight_decay': 0.5}]\n",
        "hang",
        key=None,
        options={"ds_config": ZERO1},
        passing={"ds_config": ZERO1},
        name="groups by stage, ZeRO-1",
    ),
    Example(
        "TIE308",
        "HEAD = nn.Linear(8, 11)\nWATCH = HEAD\ndef layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), lambda x: HEAD(x))\n",
        "def layers():\n    return pipeline(LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11))\n",
        "untrained",
        key=None,
    ),
    Example(
        "TIE401",
        _ends('tie(["scale", "word.weight"])', 'tie(["scale", "word.weight"], logits)'),
        GOOD,
        "crash",
        paths=("scale",),
        name="before another",
    ),
    Example(
        "TIE401",
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], logits)'),
        GOOD,
        "hang",
        paths=("scale",),
        name="fp32",
    ),
    Example(
        "TIE401",
        _ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], logits)'),
        GOOD,
        "crash",
        paths=("scale",),
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
        name="bf16",
    ),
    Example(
        "TIE402",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + _ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits, Frozen)'),
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + _ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits, Frozen)'),
        "crash",
        paths=("word.weight",),
        options={"ds_config": BF16},
    ),
    Example(
        "TIE403",
        GOOD,
        GOOD,
        "diverge",
        paths=("word.weight",),
        options={
            "ds_config": {
                **BF16,
                "data_types": {"grad_accum_dtype": "fp32"},
                "zero_force_ds_cpu_optimizer": False,
                "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
                "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
            }
        },
        passing={"ds_config": {**ZERO1, **BF16}},
        copies=WORDS,
    ),
    Example(
        "TIE501",
        "import os\n"
        + _ends("tie(NAMES)", "tie(NAMES, logits)", "NAMES = ['word.weight']\n").replace(
            "    return", "    NAMES = ['word.weight', 'scale'] if os.environ['RANK'] == '1' else ['word.weight']\n    return"
        ),
        GOOD,
        "hang",
        paths=("scale",),
        options={"stages": 2},
        name="list by rank",
    ),
    Example(
        "TIE501",
        "class Pipe(PipelineModule):\n    def __init__(self, **kwargs):\n        super().__init__(layers=pipeline(tie(['word.weight']), tie(['word.weight'], logits)), loss_fn=loss_fn, **kwargs)\n"
        "    def _synchronize_tied_weights(self):\n        if self.stage_id == 0:\n            super()._synchronize_tied_weights()\n            super()._synchronize_tied_weights()\n"
        "def layers():\n    return Pipe(num_stages=2, partition_method='uniform')\n",
        "class Pipe(PipelineModule):\n    def __init__(self, **kwargs):\n        super().__init__(layers=pipeline(tie(['word.weight']), tie(['word.weight'], logits)), loss_fn=loss_fn, **kwargs)\n"
        "    def _synchronize_tied_weights(self):\n        super()._synchronize_tied_weights()\n"
        "def layers():\n    return Pipe(num_stages=2, partition_method='uniform')\n",
        "hang",
        paths=("word.weight",),
        name="overridden",
    ),
    Example(
        "TIE501",
        MIXED.replace("ORDER", "found if self.stage_id == 0 else found[::-1]"),
        MIXED.replace("ORDER", "found"),
        "diverge",
        paths=("gain",),
        copies=((0, "gain"), (3, "gain")),
        name="mixed",
    ),
    Example(
        "TIE502",
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11)]\n",
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11)]\n",
        "crash",
        key=None,
        options={"stages": 3},
        name="stages",
    ),
    Example(
        "TIE502",
        GOOD,
        GOOD,
        "crash",
        key=None,
        options={"ds_config": {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}},
        name="batch",
    ),
    Example(
        "TIE503",
        GOOD,
        GOOD,
        "crash",
        key=None,
        options={"ds_config": {**ZERO1, "zero_optimization": {"stage": 2}}},
        passing={"ds_config": ZERO1},
    ),
    Example(
        "TIE504",
        "def layers():\n    return [tie(['word.weight']), lambda x: x, tie(['word.weight'], logits)]\n",
        GOOD,
        "crash",
        key=None,
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
    ),
)
