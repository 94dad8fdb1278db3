"""Which parameter gets a gradient at which layer: the answer, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stray:
    """A Parameter that a layer or the loss function trains though the layer does not hold it.

    Args:
        layer (int | None): the layer that reaches it; None for the loss function.
        owner (tuple[int, str] | None): the (layer, path) that holds it; None when no layer does.
        shape (tuple[int, ...]): its shape.
    """

    layer: int | None
    owner: tuple[int, str] | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Usage:
    """Which parameters get a gradient at each layer.

    Args:
        source (str): the sample input that was used.
        used (tuple[frozenset[str], ...] | None): canonical paths per layer; None when it is unknown.
        unknown (str): why it is unknown, and what to pass to know it; empty when it is known.
        notes (tuple[str, ...]): what was left out or done differently.
        sparse (frozenset[tuple[int, str]]): the (layer, path) whose gradient is sparse.
        changed (frozenset[tuple[int, str]]): the (layer, path) of buffers and parameters that the forward pass changes.
        strays (tuple[Stray, ...]): parameters that are reached from outside of the layer that holds them.
    """

    source: str
    used: tuple[frozenset[str], ...] | None
    unknown: str = ""
    notes: tuple[str, ...] = ()
    sparse: frozenset[tuple[int, str]] = frozenset()
    changed: frozenset[tuple[int, str]] = frozenset()
    strays: tuple[Stray, ...] = ()

    def gets_gradient(self, layer: int, path: str) -> bool | None:
        """Whether a parameter gets a gradient at a layer; None when it is unknown."""
        return None if self.used is None else path in self.used[layer]
