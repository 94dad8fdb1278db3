"""Failing models and their twins: the rules of lists and paths."""

from __future__ import annotations

from tests.rules.parts import BF16, GOOD, WORDS, ZERO1, Example, ends

EXAMPLES = (
    Example("TIE101", ends('tie(["wrod.weight"])', 'tie(["wrod.weight"], logits)'), GOOD, "crash", paths=("wrod.weight",)),
    Example("TIE102", ends('tie(["word"])', 'tie(["word"], logits)'), GOOD, "crash", paths=("word",), name="module"),
    Example(
        "TIE102",
        "class Flipped(Embedding):\n    @property\n    def flipped(self):\n        return self.word.weight.t()\n"
        + ends('tie(["flipped"], None, Flipped)', 'tie(["flipped"], logits, Flipped)'),
        ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "diverge",
        paths=("flipped",),
        copies=WORDS,
        name="transpose",
    ),
    Example(
        "TIE102",
        "class Flipped(Embedding):\n    @property\n    def flipped(self):\n        return self.word.weight.t().contiguous()\n"
        + ends('tie(["flipped"], None, Flipped)', 'tie(["flipped"], logits, Flipped)'),
        ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "crash",
        paths=("flipped",),
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
        name="transpose, bf16",
    ),
    Example(
        "TIE103",
        GOOD,
        ends('tie(["weight"])', 'tie(["weight"], logits)'),
        "crash",
        paths=("word.weight",),
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
    ),
    Example(
        "TIE104",
        "class Alias(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.table = self.word\n"
        + ends('tie(["word.weight", "table.weight"], None, Alias)', 'tie(["word.weight", "table.weight"], logits, Alias)'),
        "class Alias(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.table = self.word\n"
        + ends('tie(["table.weight"], None, Alias)', 'tie(["table.weight"], logits, Alias)'),
        "wrong-gradient",
        paths=("word.weight",),
        copies=WORDS,
    ),
    Example(
        "TIE105",
        ends('tie(n for n in ["word.weight"])', 'tie((n for n in ["word.weight"]), logits)'),
        ends('tie(("word.weight",))', 'tie(("word.weight",), logits)'),
        "diverge",
        copies=WORDS,
        name="generator",
    ),
    Example("TIE105", ends("tie(None)", "tie(None, logits)"), GOOD, "crash", name="None"),
    Example(
        "TIE105",
        ends('tie({"word.weight", "scale"})', 'tie({"word.weight", "scale"}, scaled_logits)'),
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "crash",
        real=False,  # whether two processes order a set alike is chance
        name="set",
    ),
    Example(
        "TIE106",
        ends('tie(["weight", "scale"])', 'tie(["weight", "scale"], scaled_logits)'),
        ends('tie("weight")', 'tie("weight", logits)'),
        "crash",
        options={"deepspeed": "0.11.1"},
        passing={"deepspeed": "0.11.1"},
        real=False,  # does not import with a torch of today
    ),
    Example(
        "TIE107",
        "class Sparse(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, sparse=True)\n"
        + ends('tie(["word.weight"], None, Sparse)', 'tie(["word.weight"], logits, Sparse)'),
        GOOD,
        "hang",
        paths=("word.weight",),
        name="sparse",
    ),
    Example(
        "TIE107",
        "class Transposed(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight = nn.Parameter(torch.randn(8, 11).t())\n"
        + ends('tie(["word.weight"], None, Transposed)', 'tie(["word.weight"], logits, Transposed)'),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="view with gaps",
    ),
    Example(
        "TIE107",
        "class Transposed(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight = nn.Parameter(torch.randn(8, 11).t())\n"
        + ends('tie(["weight"], None, Transposed)', 'tie(["weight"], logits)'),
        ends('tie(["weight"])', 'tie(["weight"], logits)'),
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
        + ends('tie(["word.weight"], None, Sliced)', 'tie(["word.weight"], logits, Sliced)'),
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
)
