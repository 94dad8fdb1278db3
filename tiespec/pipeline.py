"""What a pipeline is: layers, their parameters, and the ties between layers. Frozen data, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["parameter", "buffer", "tensor", "module", "none", "other", "missing"]


@dataclass(frozen=True)
class Location:
    """A line of the user's source.

    Args:
        file (str): path as Python reports it.
        line (int): 1-based.
    """

    file: str
    line: int


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer of one layer.

    Args:
        path (str): its first name in ``named_parameters()`` order, such as ``"word.weight"``.
        aliases (tuple[str, ...]): the other names it is registered under in the same layer.
        shape (tuple[int, ...] | None): None for a lazy parameter that has no shape yet.
        dtype (str): without the ``torch.`` prefix, such as ``"float32"``.
        requires_grad (bool): False for a frozen parameter and for every buffer.
        is_buffer (bool): True for a buffer.
        identity (int): equal for the same tensor object, in whichever layer.
        storage (int): equal for tensors that share a storage, in whichever layer.
        span (tuple[int, int]): first and past-the-end byte in the storage.
        nbytes (int): size in bytes.
    """

    path: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool
    is_buffer: bool
    identity: int
    storage: int
    span: tuple[int, int]
    nbytes: int

    @property
    def numel(self) -> int:
        """Number of elements; 0 for a lazy parameter."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it is registered under, the canonical one first."""
        return (self.path, *self.aliases)


@dataclass(frozen=True)
class ListedName:
    """A name of ``tied_weight_attr``, resolved by getattr on the layer that was built.

    Args:
        text (str): the name as written.
        kind (Kind): what it resolves to.
        path (str | None): the canonical name, where it resolves to a registered parameter or buffer.
        stable (bool): whether two reads give the same object.
    """

    text: str
    kind: Kind
    path: str | None
    stable: bool


@dataclass(frozen=True)
class Layer:
    """One layer of the pipeline, as it was built.

    Args:
        index (int): 0-based position in the list of layers.
        name (str): what DeepSpeed's ``type:REGEX`` partition matches: class or function name, ``""`` when it has none.
        typename (str): module-qualified name of the class or function.
        kind: how it was written: a spec, a module that was already built, or a function.
        key (str | None): the key of a TiedLayerSpec, as a string.
        forward_fn (str | None): name of the TiedLayerSpec's ``forward_fn``.
        location (Location | None): where the spec or the function was written.
        parameters (tuple[Parameter, ...]): in ``named_parameters()`` order, then the buffers.
        listed (tuple[ListedName, ...]): the names of ``tied_weight_attr``, in order.
        listed_as (str | None): type of ``tied_weight_attr``, such as ``"list"`` or ``"generator"``.
        properties (tuple[tuple[str, str], ...]): (property, canonical path) of the class's properties that return
            one of its parameters.
    """

    index: int
    name: str
    typename: str
    kind: Literal["spec", "module", "function"]
    key: str | None = None
    forward_fn: str | None = None
    location: Location | None = None
    parameters: tuple[Parameter, ...] = ()
    listed: tuple[ListedName, ...] = ()
    listed_as: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def trainable(self) -> Iterator[Parameter]:
        """The parameters that require a gradient."""
        return (p for p in self.parameters if p.requires_grad)

    def names_of(self, path: str) -> tuple[str, ...]:
        """Every name that means the parameter ``path`` on this layer, the canonical one first."""
        registered = next(p.names for p in self.parameters if p.path == path)
        listed = tuple(n.text for n in self.listed if n.path == path)
        properties = tuple(name for name, of in self.properties if of == path)
        return tuple(dict.fromkeys((*registered, *listed, *properties)))


@dataclass(frozen=True)
class Tie:
    """The layers of one key.

    Args:
        key (str): the key.
        layers (tuple[int, ...]): 0-based indices, ascending.
    """

    key: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, or one plain module.

    Args:
        target (str): what was loaded, as the user typed it.
        layers (tuple[Layer, ...]): in order; exactly one for a plain module.
        plain (bool): True for a plain module, which has no layers to tie.
        num_stages (int | None): from the captured PipelineModule.
        partition (str): DeepSpeed's ``partition_method``.
        notes (tuple[str, ...]): what was done differently from what the user may expect.
    """

    target: str
    layers: tuple[Layer, ...]
    plain: bool = False
    num_stages: int | None = None
    partition: str = "parameters"
    notes: tuple[str, ...] = ()

    @property
    def ties(self) -> tuple[Tie, ...]:
        """One per key, sorted by key as DeepSpeed visits them (0.16.6 and later, PR #7208)."""
        layers: dict[str, list[int]] = {}
        for layer in self.layers:
            if layer.key is not None:
                layers.setdefault(layer.key, []).append(layer.index)
        return tuple(Tie(key, tuple(layers[key])) for key in sorted(layers))

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters and buffers, each storage counted once per layer."""
        return sum(p.nbytes for layer in self.layers for p in layer.parameters)
