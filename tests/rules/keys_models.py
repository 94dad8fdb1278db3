"""Failing models and their twins: the rules of keys."""

from __future__ import annotations

from tests.rules.parts import BF16, GOOD, WORDS, Example, ends, two

EXAMPLES = (
    Example(
        "TIE201",
        ends('tie(["word.weight"], key="keys")', 'tie(["word.weight"], logits, key="keys")'),
        GOOD,
        "crash",
        key="keys",
    ),
    Example(
        "TIE201",
        ends('tie(["word.weight"], key=7)', 'tie(["word.weight"], logits, key=7)'),
        GOOD,
        "crash",
        key="7",
        name="int",
    ),
    Example(
        "TIE202",
        ends('tie(["word.weight"])', 'tie(["word.weight"], logits, key="embbed")'),
        GOOD,
        "diverge",
        key="embbed",
        paths=("word.weight",),
        copies=WORDS,
    ),
    Example(
        "TIE203",
        two(
            'tie(["a.weight", "b.weight", "a.bias", "b.bias"], None, Two)',
            'tie(["b.weight", "a.weight", "a.bias", "b.bias"], None, Two)',
        ),
        two(
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
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight"], scaled_logits)'),
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "hang",
        paths=("scale",),
        name="length",
    ),
    Example(
        "TIE204",
        ends('tie(["word.weight"])', 'tie(["word.weight"], logits, Embedding, 13)'),
        GOOD,
        "crash",
        paths=("word.weight",),
        name="shape",
    ),
    Example(
        "TIE204",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits)'),
        GOOD,
        "hang",
        paths=("word.weight",),
        name="frozen",
    ),
    Example(
        "TIE204",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + ends('tie(["word.weight", "scale"], None, Frozen)', 'tie(["word.weight", "scale"], scaled_logits)'),
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "crash",
        paths=("word.weight",),
        name="frozen before another name",
    ),
    Example(
        "TIE204",
        ends(
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
        ends(
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
        ends('tie("weight")', "final", "def final(x):\n    return x\n").replace(
            'return pipeline(tie("weight"), final)',
            'return [tie("weight"), tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm"), LayerSpec(Block), tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm"), tie("weight", logits)]',
        ),
        ends('tie("weight")', 'tie("weight", logits)'),
        "hang",
        options={"deepspeed": "0.16.5"},
        passing={"deepspeed": "0.16.5"},
        real=False,  # whether two processes order a set alike is chance
    ),
    Example(
        "TIE205",
        ends('tie("weight")', "final", "def final(x):\n    return x\n").replace(
            'return pipeline(tie("weight"), final)',
            'norm = lambda: tie(["weight", "bias"], None, nn.LayerNorm, 8, key="norm")\n'
            '    return [tie("weight"), LayerSpec(Block), LayerSpec(Block), norm(), norm(), tie("weight", logits)]',
        ),
        ends('tie("weight")', 'tie("weight", logits)'),
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
)
