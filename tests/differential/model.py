"""A small pipeline as data, drawn from a seed, and its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

VOCABULARY, HIDDEN, LENGTH = 13, 8, 5
BOTH = ("scale", "gain")
"""Parameters that both ends use, beside the word table."""
FIRST = ("position", "norm", "anchor")
"""Parameters that the first layer alone uses; ``anchor`` is frozen."""

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


@dataclass
class Model:
    """A pipeline whose first and last layer share a word table, with blocks between them.

    Args:
        depth (int): modules around the word table.
        extras (list[str]): further parameters and buffers of the tied module, from ``EXTRAS``.
        head (str): ``fn`` (a ``forward_fn``), ``class`` (a subclass), ``other`` (a class with other names), ``plain`` (no tie).
        body (list[str]): layers between: ``block``, ``shared``, ``function``, ``module``.
        first, last (list[str]): the lists as they are written, before ``wrap``.
        wrap (dict[str, str]): end -> expression around its list, such as ``tuple({})``.
        keys (tuple[str, str]): of the two ends, as Python expressions.
        shared_names (list[str]): the list of the key of the ``shared`` layers.
        extra_lines (list[str]): added to the tied class's constructor.
        members (list[str]): added to the tied class.
        last_arguments (str): further arguments of the last spec.
        head_lines (list[str]): added to the head's constructor, where it is a class of its own.
        head_uses (list[str]): lines of the head's computation before the logits.
        first_fn (bool): whether the first layer has a ``forward_fn``, too.
        stages, partition, config: how it is run.
        faults (list[str]): what was put in.
    """

    depth: int = 0
    extras: list[str] = field(default_factory=list)
    head: str = "fn"
    body: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    wrap: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, str] = ("'ends'", "'ends'")
    shared_names: list[str] = field(default_factory=list)
    extra_lines: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    last_arguments: str = ""
    head_lines: list[str] = field(default_factory=list)
    head_uses: list[str] = field(default_factory=list)
    first_fn: bool = False
    sparse: bool = False
    stages: int = 2
    partition: str = "uniform"
    config: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def at(self) -> str:
        """The path of the module that holds the word table, with its dot."""
        return "inner." * self.depth

    def path(self, name: str) -> str:
        """The canonical path of a parameter of the tied class."""
        place = self.at if name in ("word", "gain", "position") else ""
        return place + name + (".weight" if name in ("word", "position", "norm") else "")


def draw(random: Random) -> Model:
    """A healthy pipeline."""
    m = Model(depth=random.choice([0, 0, 1, 2]), head=random.choice(["fn", "fn", "class", "other"]))
    m.extras = [name for name in (*BOTH, "position", "anchor", "table") if random.random() < 0.4]
    if random.random() < 0.3:
        m.extras.append("norm")
    if m.head == "class" and random.random() < 0.4:
        m.extras.append("bias")
    if m.head == "other":
        m.extras = [name for name in m.extras if name not in BOTH]
    m.body = random.choices(["block", "block", "function", "module"], k=random.randint(1, 5))
    if random.random() < 0.35:
        for _ in range(random.randint(2, 3)):
            m.body.insert(random.randint(0, len(m.body)), "shared")
        m.shared_names = ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
        random.shuffle(m.shared_names)
    names = [m.path("word"), *(m.path(name) for name in BOTH if name in m.extras)]
    random.shuffle(names)
    m.first, m.last = list(names), ["table.weight"] if m.head == "other" else list(names)
    if random.random() < 0.2:
        _alias(m, random)
    m.stages = random.choice([1, 2, 2, 2, 2, 2, 3, 3])
    m.stages = min(m.stages, len(m.body) + 2)
    m.partition = random.choice(["uniform", "uniform", "parameters"])
    m.config = random.choice(CONFIGS)
    return m


CONFIGS: list[dict[str, Any]] = [
    {}, {}, {}, {},
    {"zero_optimization": {"stage": 1}},
    {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    {"bf16": {"enabled": True}},
]  # fmt: skip


def _alias(m: Model, random: Random) -> None:
    """Name the word table by a property, or by a second registration."""
    if random.random() < 0.5:
        m.members.append(f"    @property\n    def alias(self):\n        return self.{m.path('word')}")
    else:
        m.extra_lines.append(f"self.alias = self.{m.path('word')}")
    names = (m.first, m.last) if m.head != "other" else (m.first,)
    for listed in names:
        listed[listed.index(m.path("word"))] = "alias"


def source(m: Model) -> str:
    """The model file."""
    at = ".".join(["self", *["inner"] * m.depth])
    lines = [f"self{'.inner' * i}.inner = Part()" for i in range(m.depth)]
    lines += [f"{at}.word = nn.Embedding(VOCABULARY, HIDDEN{', sparse=True' if m.sparse else ''})"]
    lines += [EXTRAS[name].format(at=at) for name in m.extras] + m.extra_lines
    forward = [FORWARD[name].format(at=m.at) for name in FORWARD if name in m.extras]
    return "\n".join(
        [
            f'"""Faults: {", ".join(m.faults) or "none"}; {m.stages} stages, {m.partition}, {m.config}."""',
            HEADER.format(vocabulary=VOCABULARY, hidden=HIDDEN, length=LENGTH),
            "class Tied(nn.Module):",
            "    def __init__(self):\n        super().__init__()",
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
            _layers(m),
        ]
    )


HEADER = """import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

VOCABULARY, HIDDEN, LENGTH = {vocabulary}, {hidden}, {length}

class Part(nn.Module):
    pass

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))

def halved(x):
    return x * 0.5

def loss_fn(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())

def example_inputs():
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
"""


def _head(m: Model) -> str:
    own = "".join(f"        {line}\n" for line in m.head_lines)
    constructor = f"    def __init__(self):\n        super().__init__()\n{own}" if own else ""
    if m.head == "class":
        return f"class Head(Tied):\n{constructor}    def forward(self, x):\n        return logits(self, x)\n"
    if m.head == "other":
        return (
            "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.table = nn.Linear(HIDDEN, VOCABULARY, bias=False)\n{own}"
            "    def forward(self, x):\n        return self.table(x)\n"
        )
    return ""


def _layers(m: Model) -> str:
    first = _listed(m.first, m.wrap.get("first"))
    last = _listed(m.last, m.wrap.get("last"))
    started = ", forward_fn=embedded" if m.first_fn else ""
    head = "Head" if m.head in ("class", "other") else "Tied"
    ended = "" if m.head in ("class", "other") else ", forward_fn=logits"
    body = {
        "block": "LayerSpec(Block)",
        "shared": f"TiedLayerSpec('shared', Block, tied_weight_attr={m.shared_names!r})",
        "function": "halved",
        "module": "nn.LayerNorm(HIDDEN)",
    }
    rows = [f"TiedLayerSpec({m.keys[0]}, Tied{started}, tied_weight_attr={first})", *(body[kind] for kind in m.body)]
    rows.append(f"TiedLayerSpec({m.keys[1]}, {head}{ended}, tied_weight_attr={last}{m.last_arguments})")
    return "def layers():\n    return [\n" + "".join(f"        {row},\n" for row in rows) + "    ]\n"


def _listed(names: list[str], wrap: str | None) -> str:
    return (wrap or "{}").format(repr(names))
