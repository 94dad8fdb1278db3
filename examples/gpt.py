"""A GPT as a DeepSpeed pipeline: the first and the last layer share the word embedding.

RECIPE is the list that the recipe "every parameter with more than one element" gives. Training with it hangs, because
the head uses the word table alone. `tiespec generate examples/gpt.py` writes the list that trains right.
"""

import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

RECIPE = ["word.weight", "position.weight", "norm.weight", "norm.bias"]


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, length: int, hidden: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(length, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.norm(self.word(tokens) + self.position(positions))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attention(self.norm1(x)).chunk(3, dim=2)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def logits(embedding: Embedding, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(hidden, embedding.word.weight)


def build_layers(names=RECIPE, vocabulary=50304, length=1024, hidden=1024, heads=16, blocks=12):
    return [
        TiedLayerSpec("embed", Embedding, vocabulary, length, hidden, tied_weight_attr=names),
        *(LayerSpec(Block, hidden, heads) for _ in range(blocks)),
        TiedLayerSpec("embed", Embedding, vocabulary, length, hidden, forward_fn=logits, tied_weight_attr=names),
    ]


def loss_fn(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def example_inputs():
    tokens = torch.randint(0, 29, (2, 9))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
