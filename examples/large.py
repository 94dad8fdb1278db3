"""About 400 billion parameters, of which tiespec allocates none.

tiespec generate examples/large.py
"""

import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

LAYERS, HIDDEN, HEADS, VOCABULARY = 128, 16384, 128, 128256


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.word(tokens)


class Head(Embedding):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.word.weight)


def build_layers(layers=LAYERS, hidden=HIDDEN, heads=HEADS, vocabulary=VOCABULARY):
    block = {"dim_feedforward": 4 * hidden, "dropout": 0.0, "batch_first": True, "norm_first": True}
    return [
        TiedLayerSpec("embed", Embedding, vocabulary, hidden, tied_weight_attr=["word.weight"]),
        *(LayerSpec(nn.TransformerEncoderLayer, hidden, heads, **block) for _ in range(layers)),
        TiedLayerSpec("embed", Head, vocabulary, hidden, tied_weight_attr=["word.weight"]),
    ]
