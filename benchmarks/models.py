"""A model file whose numbers of layers and ties are arguments."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''
import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn


class Narrow(nn.Module):
    def __init__(self, width, slope):
        super().__init__()
        self.inner, self.slope = nn.Linear(width, width), slope

    def forward(self, x):
        return x + self.slope * self.inner(x)


class Wide(nn.Module):
    def __init__(self, width, times):
        super().__init__()
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def build_layers(layers, ties):
    """Two layers of each key, as far apart as they can be, and the others between them."""
    names = ["inner.weight", "inner.bias"]
    ends = [TiedLayerSpec(f"key{i % ties}", Narrow, 8, 0.5, tied_weight_attr=names) for i in range(2 * ties)]
    between = [LayerSpec((Narrow, Wide)[i % 2], 8, 1 + i // 2 % 2) for i in range(layers - 2 * ties)]
    return ends[:ties] + between + ends[ties:]


def example_inputs():
    return torch.randn(2, 8), torch.zeros(2)
'''


def write_model(folder: str) -> str:
    """Write the file; its path. A TARGET is ``PATH:build_layers(LAYERS, TIES)``, LAYERS at least twice TIES."""
    path = Path(folder, "growing.py")
    path.write_text(SOURCE)
    return str(path)
