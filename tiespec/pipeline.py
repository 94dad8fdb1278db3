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
class CallSite:
    """A call in the user's source.

    Args:
        file (str): path as Python reports it.
        line (int): 1-based line on which it begins.
        end_line (int | None): 1-based line on which it ends; None before Python 3.11.
        end_column (int | None): bytes of UTF-8 on that line up to its end.
    """

    file: str
    line: int
    end_line: int | None = None
    end_column: int | None = None


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
        stride (tuple[int, ...]): in bytes.
        nbytes (int): size in bytes.
        contiguous (bool): whether a collective takes it as it is.
        given (bool): whether it existed before the layer was built: it belongs to a live model.
        digest (str | None): of its values, where it is given to a tied layer and has values.
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
    stride: tuple[int, ...]
    nbytes: int
    contiguous: bool = True
    given: bool = False
    digest: str | None = None

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
class Config:
    """What a transformers-like config says about ties.

    Args:
        typename (str): class of the config.
        ties_embeddings (bool): its ``tie_word_embeddings``.
        vocabulary (int | None): its ``vocab_size``.
    """

    typename: str
    ties_embeddings: bool
    vocabulary: int | None


@dataclass(frozen=True)
class Declared:
    """Two parameters that a model declares as tied (``_tied_weights_keys``) and that are two objects.

    Args:
        model (str): class of the model.
        first (tuple[int, str]): (layer, path) of one.
        second (tuple[int, str]): (layer, path) of the other.
    """

    model: str
    first: tuple[int, str]
    second: tuple[int, str]


@dataclass(frozen=True)
class Layer:
    """One layer of the pipeline, as it was built.

    Args:
        index (int): 0-based position in the list of layers.
        name (str): what DeepSpeed's ``type:REGEX`` partition matches: class or function name, ``""`` when it has none.
        typename (str): module-qualified name of the class or function.
        kind: how it was written: a spec, a module that was already built, or a function.
        key (str | None): the key of a TiedLayerSpec, as a string.
        key_error (str | None): why torch refuses the key, in its words.
        forward_fn (str | None): name of the TiedLayerSpec's ``forward_fn``.
        location (Location | None): where the spec or the function was written.
        calls (tuple[CallSite, ...]): the calls in the user's source that made the spec, the innermost first.
        parameters (tuple[Parameter, ...]): in ``named_parameters()`` order, then the buffers.
        listed (tuple[ListedName, ...]): the names of ``tied_weight_attr``, in order.
        listed_as (str | None): type of ``tied_weight_attr``, such as ``"list"`` or ``"generator"``.
        properties (tuple[tuple[str, str], ...]): (property, canonical path) of the class's properties that return
            one of its parameters.
        bases (tuple[str, ...]): module-qualified names of the class and its bases, up to ``nn.Module``.
        recipe (int): equal for layers of the same class with equal constructor arguments.
        unbuilt (str | None): the arguments that the class does not take, in Python's words; the layer has no parameters.
        swallowed (tuple[str, ...]): keyword arguments that look like TiedLayerSpec's own and went into a ``**kwargs``.
        config (Config | None): the config that its constructor was given or that its modules hold.
    """

    index: int
    name: str
    typename: str
    kind: Literal["spec", "module", "function"]
    key: str | None = None
    key_error: str | None = None
    forward_fn: str | None = None
    location: Location | None = None
    calls: tuple[CallSite, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    listed: tuple[ListedName, ...] = ()
    listed_as: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    bases: tuple[str, ...] = ()
    recipe: int = 0
    unbuilt: str | None = None
    swallowed: tuple[str, ...] = ()
    config: Config | None = None

    def parameter(self, path: str) -> Parameter:
        """The parameter or buffer of a canonical path."""
        return next(p for p in self.parameters if p.path == path)

    def trainable(self) -> Iterator[Parameter]:
        """The parameters that require a gradient."""
        return (p for p in self.parameters if p.requires_grad)

    def names_of(self, path: str) -> tuple[str, ...]:
        """Every name that means the parameter ``path`` on this layer, the canonical one first."""
        registered = self.parameter(path).names
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
        declared (tuple[Declared, ...]): ties that a model of the target declares and its objects do not have.
    """

    target: str
    layers: tuple[Layer, ...]
    plain: bool = False
    num_stages: int | None = None
    partition: str = "parameters"
    notes: tuple[str, ...] = ()
    declared: tuple[Declared, ...] = ()

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
