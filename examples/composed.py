"""The module of DeepSpeed PR #7208: a Linear and a LayerNorm inside one module.

tiespec generate examples/composed.py:ComposedModule
"""

import torch
from torch import nn


class ComposedModule(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.layer_norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(self.linear(x))
