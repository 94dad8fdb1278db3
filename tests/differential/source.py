"""The model file of a small pipeline."""

from __future__ import annotations

from tests.differential.model import BOTH, Model

VOCABULARY, HIDDEN, LENGTH = 13, 8, 5
EXTRAS = {
    "scale": "self.scale = nn.Parameter(torch.rand(1) + 0.5)",
    "gain": "{at}.gain = nn.Parameter(torch.rand(HIDDEN) + 0.5)",
    "position": "{at}.position = nn.Embedding(LENGTH, HIDDEN)",
    "norm": "self.norm = nn.LayerNorm(HIDDEN)",
    "anchor": "self.anchor = nn.Parameter(torch.rand(HIDDEN), requires_grad=False)",
    "bias": "self.bias = nn.Parameter(torch.zeros(VOCABULARY))",
    "table": "self.register_buffer('table', torch.arange(HIDDEN) / HIDDEN)",
    "running": "self.running = nn.BatchNorm1d(HIDDEN, affine=False)",
}
FORWARD = {
    "position": "x = x + m.{at}position(torch.arange(tokens.shape[1]))",
    "anchor": "x = x + m.anchor",
    "table": "x = x + m.table.to(x.dtype)",
    "scale": "x = x * m.scale",
    "gain": "x = x * m.{at}gain",
    "norm": "x = m.norm(x)",
    "running": "x = m.running(x.transpose(1, 2)).transpose(1, 2).contiguous()",
}


def source(m: Model) -> str:
    """The model file."""
    at = ".".join(["self", *["inner"] * m.depth])
    lines = [f"self{'.inner' * i}.inner = Part()" for i in range(m.depth)]
    lines += [f"{at}.word = nn.Embedding(VOCABULARY, HIDDEN{', sparse=True' if m.sparse else ''})"]
    lines += [EXTRAS[name].format(at=at) for name in m.extras] + m.extra_lines
    lines += ["self.config = Config()"] if m.says_tied is not None else []
    forward = [FORWARD[name].format(at=m.at) for name in FORWARD if name in m.extras]
    return "\n".join(
        [
            f'"""Faults: {", ".join(m.faults) or "none"}; {m.stages} stages, {m.partition}, {m.config}."""',
            HEADER.format(vocabulary=VOCABULARY, hidden=HIDDEN, length=LENGTH),
            LOSS.format(factor=f" * {m.loss}" if m.loss else ""),
            *m.made,
            *([CONFIG.format(tied=m.says_tied)] if m.says_tied is not None else []),
            *([_live(m)] if m.head == "live" else _tied(m, lines, forward)),
            *([GROUPS[m.groups]] if m.groups else []),
            _layers(m),
        ]
    )


HEADER = """import os
import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

VOCABULARY, HIDDEN, LENGTH = {vocabulary}, {hidden}, {length}

class Part(nn.Module):
    pass

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
    matrix, offset = property(lambda self: self.linear.weight), property(lambda self: self.linear.bias)
    gain, shift = property(lambda self: self.norm.weight), property(lambda self: self.norm.bias)
    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))

def halved(x):
    return x * 0.5

class Given(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part
    def forward(self, x):
        return self.part(x)

def example_inputs():
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
"""


LOSS = """def loss_fn(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten()){factor}
"""
CONFIG = """class Config:
    tie_word_embeddings, vocab_size = {tied}, VOCABULARY
"""
GROUPS = {
    "parameter": """def parameter_groups(module):
    flat = [p for p in module.parameters() if p.requires_grad and p.dim() < 2]
    others = [p for p in module.parameters() if p.requires_grad and p.dim() > 1]
    return [g for g in ({"params": flat}, {"params": others, "weight_decay": 0.5}) if g["params"]]
""",
    "module": """def parameter_groups(module):
    kept = {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    words = [p for p in module.parameters() if p.requires_grad and id(p) in kept]
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in kept]
    return [g for g in ({"params": words}, {"params": others, "weight_decay": 0.5}) if g["params"]]
""",
}


def _tied(m: Model, lines: list[str], forward: list[str]) -> list[str]:
    """The tied class, and what its two ends compute."""
    swallows = ", **kwargs" if m.spelled != "tied_weight_attr" else ""
    return [
        "class Tied(nn.Module):",
        f"    def __init__(self{swallows}):\n        super().__init__()",
        *(f"        {line}" for line in lines),
        *m.members,
        "    def forward(self, tokens):\n        return embedded(self, tokens)\n",
        f"def embedded(m, tokens):\n    x = m.{m.at}word(tokens)",
        *(f"    {line}" for line in forward),
        "    return x\n",
        "def logits(m, x):",
        *(f"    x = x * m.{m.path(name)}" for name in BOTH if name in m.extras),
        *(f"    {line}" for line in m.head_uses),
        f"    return F.linear(x, m.{m.at}word.weight){' + m.bias' if 'bias' in m.extras else ''}\n",
        _head(m),
    ]


def _live(m: Model) -> str:
    """A model in memory, whose parts the ends are given."""
    config = "        self.config = Config()\n" if m.says_tied is not None else ""
    return (
        "class Whole(nn.Module):\n    _tied_weights_keys = ['head.weight']\n    def __init__(self):\n        super().__init__()\n"
        + config
        + f"        self.word = nn.Embedding(VOCABULARY, HIDDEN{', sparse=True' if m.sparse else ''})\n"
        "        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)\n"
        + ("        self.head.weight = self.word.weight\n" if m.one_table else "")
        + "    def get_input_embeddings(self):\n        return self.word\n\nMODEL = Whole()\n"
    )


def _head(m: Model) -> str:
    own = "".join(f"        {line}\n" for line in m.head_lines)
    constructor = f"    def __init__(self):\n        super().__init__()\n{own}" if own else ""
    if m.head == "class":
        return f"class Head(Tied):\n{constructor}    def forward(self, x):\n        return logits(self, x)\n"
    if m.head == "other":
        return (
            "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.table = nn.Linear(HIDDEN, VOCABULARY, bias=False)\n{own}"
            f"    def forward(self, x):\n        return {m.head_forward}\n"
        )
    return ""


BODY = {
    "block": "LayerSpec(Block)",
    "shared": "TiedLayerSpec('shared', Block, tied_weight_attr={names!r})",
    "function": "halved",
    "module": "nn.LayerNorm(HIDDEN)",
}


def _layers(m: Model) -> str:
    rows = [_end(m, "first"), *(BODY.get(kind, kind).format(names=m.shared_names) for kind in m.body), _end(m, "last")]
    listed = "[\n" + "".join(f"        {row},\n" for row in rows) + "    ]"
    if m.methods is None:
        return f"def layers():\n    return {listed}\n"
    methods = "".join(m.methods) or "    pass\n"
    pipe = f"Pipe(layers={listed}, num_stages={m.stages}, loss_fn=loss_fn, partition_method={m.partition!r})"
    return f"class Pipe(PipelineModule):\n{methods}\ndef layers():\n    return {pipe}\n"


def _end(m: Model, end: str) -> str:
    """The spec of the first or the last layer."""
    first = end == "first"
    if m.head == "live":
        made, function = f"Given, MODEL.{'word' if first else 'head'}", ""
    elif m.head in ("class", "other"):
        made, function = "Tied" if first else "Head", "embedded" if first and m.first_fn else ""
    else:
        made, function = "Tied", ("embedded" if m.first_fn else "") if first else "logits"
    more = "" if first else m.last_arguments
    if not m.tied:
        return f"LayerSpec({made}{more})"
    names = _listed(m.first if first else m.last, m.wrap.get(end))
    runs = f", forward_fn={function}" if function else ""
    return f"TiedLayerSpec({m.keys[0 if first else 1]}, {made}{runs}, {m.spelled}={names}{more})"


def _listed(names: list[str], wrap: str | None) -> str:
    return (wrap or "{}").format(repr(names))
