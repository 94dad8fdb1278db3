"""Failing models and their twins: the rules of what is tied, and what is not."""

from __future__ import annotations

from tests.rules.parts import GOOD, WORDS, ZERO1, Example, ends

EXAMPLES = (
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
        ends('tie(["word.weight"])', 'tie(["word.weight"], scaled_logits)'),
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], scaled_logits)'),
        "diverge",
        paths=("scale",),
        copies=((0, "scale"), (3, "scale")),
    ),
    Example(
        "TIE303",
        "def embedded(m, x):\n    return m(x)\n" + ends('tie(["word.weight"], embedded)', 'tie(["word.weight"], logits)'),
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
        + ends('tie(["word.weight"], None, Ends)', 'tie(["word.weight"], norm_and_logits, Ends)'),
        "def layers():\n    return [tie(['word.weight']), LayerSpec(Block), LayerSpec(nn.LayerNorm, 8), tie(['word.weight'], logits)]\n",
        "lost-on-resume",
        paths=("final_norm.weight", "final_norm.bias"),
        copies=((3, "final_norm.weight"),),
        name="head",
    ),
    Example(
        "TIE303",
        "def embed(m, tokens):\n    return m.word(tokens)\n"
        + ends('tie(["word.weight"], embed)', 'tie(["word.weight"], logits)'),
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
        + ends('tie(["word.weight"], None, Bounded)', 'tie(["word.weight"], logits, Bounded)'),
        GOOD,
        "diverge",
        paths=("word.weight",),
        copies=WORDS,
        name="max_norm",
    ),
    Example(
        "TIE304",
        "class Bounded(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, max_norm=0.5)\n"
        + ends('tie(["word.weight"], None, Bounded)', 'tie(["word.weight"], logits, Bounded)'),
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
)
