"""Sample input: from ``example_inputs()``, from ``--input``, or derived from the first layer with parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tiespec.capture import LiveLayer
from tiespec.errors import UsageError
from tiespec.guest import guest

FORM = 'write --input "int64[2,16]<50304" or --input "float32[4,32]", one per tensor of a tuple'
SEQUENCE = 16
BATCH = 2


@dataclass(frozen=True)
class InputShape:
    """One tensor of a sample input.

    Args:
        dtype (str): without the ``torch.`` prefix.
        shape (tuple[int, ...]): its shape.
        below (int | None): integers are drawn below it; 2 when None.
    """

    dtype: str
    shape: tuple[int, ...]
    below: int | None

    def make(self) -> torch.Tensor:
        """A tensor on the current default device."""
        dtype = getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return torch.randn(self.shape).to(dtype)
        return torch.randint(0, self.below or 2, self.shape).to(dtype)


@dataclass(frozen=True)
class Sample:
    """A sample input.

    Args:
        source (str): where it comes from, for the report.
        inputs (Any): a tensor, or a tuple of tensors.
        labels (Any): for the loss function; None when unknown.
    """

    source: str
    inputs: Any
    labels: Any


def parse_input(text: str) -> InputShape:
    """Parse an ``--input``.

    Raises:
        UsageError: it is not of the form, or names no dtype of torch.
    """
    match = re.fullmatch(r"\s*(\w+)\s*\[([\d\s,]*)\]\s*(?:<\s*(\d+))?\s*", text)
    if match is None:
        raise UsageError(f"cannot read --input {text!r}", FORM)
    dtype, sizes, below = match.groups()
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UsageError(f"--input {text!r}: {dtype!r} is no dtype of torch", FORM)
    shape = tuple(int(size) for size in sizes.replace(" ", "").split(",") if size)
    if below == "0":
        raise UsageError(f"--input {text!r}: there is no integer below 0 to draw", FORM)
    return InputShape(dtype, shape, int(below) if below else None)


def samples(given: Sequence[str], namespace: Any, live: Sequence[LiveLayer]) -> list[Sample]:
    """The sample inputs to try, in order; empty when none is known.

    Tensors are made on the current default device. What the user gives is the only one to try; several shapes are
    tried only when they are derived.

    Args:
        given (Sequence[str]): the ``--input`` options.
        namespace (Any): the module that may define ``example_inputs``.
        live (Sequence[LiveLayer]): the layers.
    """
    if given:
        tensors = tuple(parse_input(text).make() for text in given)
        return [Sample("--input " + " ".join(given), tensors[0] if len(tensors) == 1 else tensors, None)]
    example = getattr(namespace, "example_inputs", None)
    if callable(example):
        return [_from_example(example)]
    return [Sample(f"derived from the first layers: {_form(s)}", s.make(), None) for s in derive(live)]


def _from_example(example: Any) -> Sample:
    with guest("calling example_inputs()"):
        pair = example()
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise UsageError(
            f"example_inputs() returned a {type(pair).__name__}", "return (inputs, labels), as the data loader yields them"
        )
    return Sample("example_inputs()", pair[0], pair[1])


def to_device(value: Any, device: torch.device) -> Any:
    """A copy of nested tensors on ``device``, detached."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), value)


def _form(shape: InputShape) -> str:
    return f"{shape.dtype}{list(shape.shape)}" + (f"<{shape.below}" if shape.below else "")


def derive(live: Sequence[LiveLayer]) -> list[InputShape]:
    """Inputs that the first layer with parameters takes: token ids for an embedding, features for a Linear, an image.

    Args:
        live (Sequence[LiveLayer]): the layers, in order.
    """
    modules = (layer.module for layer in live if layer.module is not None)
    module = next((m for m in modules if next(m.parameters(), None) is not None), None)
    if module is None:
        return []
    leaves = [m for m in module.modules() if isinstance(m, _KNOWN)]
    if not leaves:
        return []
    embeddings = [m for m in leaves if isinstance(m, nn.Embedding)]
    if isinstance(leaves[0], nn.Embedding):
        length = min(SEQUENCE, *(m.num_embeddings for m in embeddings)) if len(embeddings) > 1 else SEQUENCE
        return [InputShape("int64", (BATCH, max(1, length)), leaves[0].num_embeddings)]
    return _features(leaves[0])


_KNOWN = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)


def _features(leaf: nn.Module) -> list[InputShape]:
    dtype = str(next(leaf.parameters()).dtype).removeprefix("torch.")
    if isinstance(leaf, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        dimensions = leaf.weight.dim() - 2
        return [InputShape(dtype, (BATCH, leaf.in_channels, *[32] * dimensions), None)]
    if isinstance(leaf, nn.LayerNorm):
        width = tuple(leaf.normalized_shape)
    else:
        width = (leaf.in_features if isinstance(leaf, nn.Linear) else leaf.input_size,)  # type: ignore[assignment]
    return [InputShape(dtype, (BATCH, SEQUENCE, *width), None), InputShape(dtype, (BATCH, *width), None)]
