"""What the models of the rules are made of."""

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


def ends(first: str, last: str | None = None, before: str = "") -> str:
    return f"{before}\ndef layers():\n    return pipeline({first}, {last or first})\n"


GOOD = ends('tie(["word.weight"])', 'tie(["word.weight"], logits)')
WORDS = ((0, "word.weight"), (3, "word.weight"))

SHARED = "class Two(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)\n    def forward(self, x):\n        return self.a(x) + torch.tanh(self.b(x))\n"
TWO = "[LayerSpec(nn.Embedding, 11, 8), {}, LayerSpec(Block), {}, LayerSpec(nn.Linear, 8, 11)]"


def two(first: str, second: str) -> str:
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
