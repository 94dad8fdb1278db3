"""The one context that all rules read. Frozen data and questions about it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from tiespec.dsconfig import DsConfig
from tiespec.pairing import Row, pair
from tiespec.parting import Parting
from tiespec.pipeline import Layer, ListedName, Pipeline, Tie
from tiespec.stages import stage_of
from tiespec.usage import Usage


@dataclass(frozen=True)
class Cut:
    """The layers, cut into stages.

    Args:
        stages (int): number of stages.
        parts (tuple[int, ...]): first layer of every stage, and the number of layers at the end.
    """

    stages: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """The copy of a tied module in one stage.

    Args:
        stage (int): 0-based.
        owner (int): the first layer of the key in the stage: the one that DeepSpeed builds.
        layers (tuple[int, ...]): all layers of the key in the stage.
    """

    stage: int
    owner: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """How the pipeline will be run.

    Args:
        deepspeed (Version): the release on the cluster.
        stages_given (bool): whether the numbers of stages were asked for, or are in the target.
        data_parallel (int): copies of the pipeline.
        tensor_parallel (int): ranks that share a stage.
        config (DsConfig): precision and ZeRO.
        config_given (bool): whether a DeepSpeed config was passed.
    """

    deepspeed: Version
    stages_given: bool = False
    data_parallel: int = 1
    tensor_parallel: int = 1
    config: DsConfig = field(default_factory=DsConfig)
    config_given: bool = False


@dataclass(frozen=True)
class Context:
    """What all rules read.

    Args:
        pipeline (Pipeline): the layers.
        usage (Usage): which parameter gets a gradient at which layer.
        settings (Settings): how it will be run.
        cuts (tuple[Cut, ...]): one per number of stages that is looked at.
        impossible (tuple[tuple[int, str], ...]): (number of stages, why there is no such cut).
        spec_file (str | None): the recorded spec.
        drift (tuple[tuple[str | None, str], ...]): (key, what has changed) since the spec was recorded.
        groups (Mapping[tuple[int, str], str] | None): (layer, path) -> optimizer settings; None when not asked for.
        group_counts (Mapping[int, tuple[int, ...] | str]): number of stages -> how many optimizer groups each stage has, or what
            was raised; empty when not asked for, or when it does not matter.
        shadows_raise (Mapping[int, str]): number of stages -> what the layers raise when the first layer of a key in a stage
            runs in place of the others.
        partings (Mapping[int, Parting | str]): number of stages -> where simulated ranks part; or what the construction raises.
    """

    pipeline: Pipeline
    usage: Usage
    settings: Settings
    cuts: tuple[Cut, ...]
    impossible: tuple[tuple[int, str], ...] = ()
    spec_file: str | None = None
    drift: tuple[tuple[str | None, str], ...] = ()
    groups: Mapping[tuple[int, str], str] | None = None
    group_counts: Mapping[int, tuple[int, ...] | str] = field(default_factory=dict)
    shadows_raise: Mapping[int, str] = field(default_factory=dict)
    partings: Mapping[int, Parting | str] = field(default_factory=dict)

    @property
    def ties(self) -> tuple[Tie, ...]:
        """The keys, sorted."""
        return self.pipeline.ties

    def layers(self, tie: Tie) -> list[Layer]:
        """The layers of a key that were built."""
        return [layer for i in tie.layers if (layer := self.pipeline.layers[i]).unbuilt is None]

    def rows(self, tie: Tie) -> list[Row]:
        """The parameters of a key, paired across its layers."""
        layers = self.layers(tie)
        return pair(layers) if layers else []

    def parallel(self) -> tuple[int, ...]:
        """The numbers of stages above one: with one stage DeepSpeed does not look at the lists at all."""
        return tuple(cut.stages for cut in self.cuts if cut.stages > 1)

    def spread(self, tie: Tie) -> list[Cut]:
        """The cuts in which the layers of a key are in more than one stage."""
        return [cut for cut in self.cuts if len(shards(tie, cut)) > 1]

    def gets_gradient(self, shard: Shard, path: str) -> bool | None:
        """Whether a parameter gets a gradient in a stage; None when it is unknown."""
        if self.usage.used is None:
            return None
        return any(path in self.usage.used[i] for i in shard.layers)


def shards(tie: Tie, cut: Cut) -> list[Shard]:
    """The copies of a tied module, by stage."""
    stages: dict[int, list[int]] = {}
    for index in tie.layers:
        stages.setdefault(stage_of(index, cut.parts), []).append(index)
    return [Shard(stage, layers[0], tuple(layers)) for stage, layers in sorted(stages.items())]


def stand_ins(pipeline: Pipeline, cut: Cut) -> dict[int, int]:
    """Layer -> the other layer whose module runs there: the first one of its key in the stage, where the two differ."""
    found = {}
    for tie in pipeline.ties:
        for shard in shards(tie, cut):
            owner = pipeline.layers[shard.owner]
            found.update({i: owner.index for i in shard.layers[1:] if shadows(owner, pipeline.layers[i])})
    return found


def shadows(owner: Layer, other: Layer) -> bool:
    """Whether two layers of a key in one stage differ in more than their ``forward_fn``."""
    lists_differ = [n.text for n in owner.listed] != [n.text for n in other.listed]
    return owner.recipe != other.recipe or (other.forward_fn is None and lists_differ)


def nearest_names(layer: Layer, text: str, count: int = 3) -> list[str]:
    """The names of a layer's parameters that are nearest to a name."""
    names = [name for p in layer.parameters if not p.is_buffer for name in layer.names_of(p.path)]
    return difflib.get_close_matches(text, dict.fromkeys(names), n=count, cutoff=0.5)


def meant(layer: Layer, listed: ListedName) -> tuple[str, ...]:
    """The canonical paths that a listed name means: itself, the nearest one, or all of a module.

    So that a name that is misspelled is reported as such, and not as missing too.
    """
    if listed.path is not None:
        return (listed.path,)
    if listed.kind == "module":
        return tuple(p.path for p in layer.parameters if any(n.startswith(f"{listed.text}.") for n in p.names))
    near = nearest_names(layer, listed.text, 1)
    return tuple(p.path for p in layer.parameters if near and near[0] in layer.names_of(p.path))


def listed_paths(layer: Layer) -> tuple[str, ...]:
    """The canonical paths that a layer's list names or means, in its order."""
    return tuple(path for listed in layer.listed for path in meant(layer, listed))


def positions(layer: Layer) -> tuple[str | None, ...]:
    """The canonical path at each position of a layer's list; None where the name is no parameter."""
    return tuple(paths[0] if len(paths := meant(layer, listed)) == 1 else None for listed in layer.listed)


def is_clear(layers: Sequence[Layer]) -> bool:
    """Whether it is known what the lists of these layers are meant to name; where not, another rule has said why."""
    return bool(layers) and all(is_ordered(y) and all(meant(y, n) for n in y.listed) for y in layers)


def is_ordered(layer: Layer) -> bool:
    """Whether a layer's ``tied_weight_attr`` gives the same names in the same order at every read."""
    return layer.listed_as in ORDERED or (layer.listed_as in UNORDERED and len(layer.listed) < 2)


INPUT_HELP = "pass --input, or define example_inputs() beside the layers"

ORDERED = ("list", "tuple", "str", "dict", "dict_keys", "dict_values", "deque", "ListConfig")
UNORDERED = ("set", "frozenset")
READ_ONCE = ("generator", "map", "filter", "zip", "list_iterator", "tuple_iterator")
"""Empty after the first read, which is that of the broadcast at construction."""


def broadcast_in_order(layer: Layer) -> bool:
    """Whether the first read of ``tied_weight_attr``, when the pipeline is built, gives the names in a fixed order."""
    return is_ordered(layer) or layer.listed_as in READ_ONCE


def layers_said(indices: Sequence[int]) -> str:
    """``layer 3``, ``layers 3 and 13``, ``layers 1, 3 and 13``."""
    words = [str(i) for i in indices]
    return f"layer {words[0]}" if len(words) == 1 else f"layers {', '.join(words[:-1])} and {words[-1]}"


def counts_said(counts: Sequence[int]) -> str:
    """``2 stages``, ``2 to 14 stages``, ``2, 4 or 8 stages``."""
    if len(counts) == 1:
        return f"{counts[0]} stage{'' if counts[0] == 1 else 's'}"
    if len(counts) > 2 and list(counts) == list(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]} to {counts[-1]} stages"
    return f"{', '.join(str(c) for c in counts[:-1])} or {counts[-1]} stages"


def list_said(names: Sequence[str]) -> str:
    """``tied_weight_attr=["a", "b"]``."""
    return f"tied_weight_attr=[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"
