"""What the patched PipelineModule is given: keys, ties by parameter, numbers; looked at before anything is built."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deepspeed.pipe import TiedLayerSpec
from torch import nn

from tiespec.errors import TieUnresolvedError

Ties = list[tuple[str, dict[int, list[str]]]]
TIES_HELP = 'write ties=[{"key": "word", "by_layer": {0: ["weight"], 5: ["weight"]}}], or pass what tiespec.generate returns'


def ties_of(ties: Any) -> Ties:
    """Ties by parameter as (key, layer -> names), sorted by key.

    Raises:
        TieUnresolvedError: it is neither a spec with ``proposals`` nor a sequence of mappings.
    """
    found = []
    for entry in getattr(ties, "proposals", ties) or ():
        tie = entry if isinstance(entry, Mapping) else getattr(entry, "__dict__", {})
        by_layer = tie.get("by_layer")
        if "key" not in tie or not isinstance(by_layer, Mapping) or any(isinstance(n, str) for n in by_layer.values()):
            raise TieUnresolvedError(f"ties= holds {entry!r:.80}, which is no tie", TIES_HELP)
        found.append((str(tie["key"]), {int(layer): list(names) for layer, names in by_layer.items()}))
    return sorted(found, key=lambda tie: tie[0])


def check_ties(ties: Ties, specs: Sequence[Any]) -> None:
    """Refuse ties by parameter that cannot be kept. Every rank comes to the same error.

    Raises:
        TieUnresolvedError: a layer that is not there, one layer alone, lists of different length, a layer that has a key, or
            a parameter in two ties.
    """
    layers, seen = len(specs), set()
    for key, by_layer in ties:
        lengths = {len(names) for names in by_layer.values()}
        missing = [layer for layer in by_layer if not 0 <= layer < layers]
        if missing:
            raise TieUnresolvedError(f'tie "{key}" names layer {missing[0]}; there are {layers} layers', TIES_HELP)
        keyed = [layer for layer in by_layer if isinstance(specs[layer], TiedLayerSpec)]
        if keyed:
            what = f'tie "{key}" names layer {keyed[0]}, which has the key "{specs[keyed[0]].key}"'
            raise TieUnresolvedError(what, "tie it by its key, or write a LayerSpec")
        for place in ((layer, name) for layer, names in by_layer.items() for name in names):
            if place in seen:
                what = f'tie "{key}": "{place[1]}" of layer {place[0]} is in two ties, or twice in one'
                raise TieUnresolvedError(what, "make one tie of all its layers")
            seen.add(place)
        if len(by_layer) < 2 or len(lengths) > 1 or 0 in lengths:
            raise TieUnresolvedError(
                f'tie "{key}" of {by_layer} ties nothing: at least two layers, as many names each', TIES_HELP
            )


def steps_of(check_every: int) -> int:
    """``check_every`` as it is.

    Raises:
        ValueError: it is no number of steps.
    """
    if isinstance(check_every, bool) or not isinstance(check_every, int) or check_every < 0:
        raise ValueError(f"check_every={check_every!r} is no number of steps: write 0 for never, 100 for every 100 steps")
    return check_every


def warn_of_lost_ties(here: Any) -> None:
    """Say when modules of different stages share a Parameter that nothing ties: the stages train a copy each."""
    tied = {(layer, name) for _, by_layer in here._parameter_ties for layer, names in by_layer.items() for name in names}
    first: dict[int, tuple[int, str]] = {}
    for layer, item in enumerate(here._layer_specs):
        for name, parameter in item.named_parameters() if isinstance(item, nn.Module) else ():
            other, path = first.setdefault(id(parameter), (layer, name))
            if here.stage_owner(other) != here.stage_owner(layer) and (layer, name) not in tied:
                places = f'"{path}" of layer {other} and "{name}" of layer {layer} are one Parameter in two stages'
                what = f"{places}, and nothing ties them: the copies will drift apart; pass ties=tiespec.generate(layers)"
                warnings.warn(what, stacklevel=6)


def check_keys(specs: Sequence[Any]) -> None:
    """Refuse a key that DeepSpeed's ModuleDict refuses, two keys of one layer each that look like one, and what is no list.

    Every rank has all specs, so every rank comes to the same error.

    Raises:
        TieUnresolvedError: it names the key and the layer.
    """
    layers: dict[Any, list[int]] = {}
    for index, spec in enumerate(specs):
        if isinstance(spec, TiedLayerSpec):
            layers.setdefault(spec.key, []).append(index)
            if not isinstance(spec.tied_weight_attr, Iterable):
                what = f'tied_weight_attr of layer {index}, key "{spec.key}", is {spec.tied_weight_attr!r}'
                raise TieUnresolvedError(what, "write a list of names")
    for key, (first, *_) in layers.items():
        try:
            nn.ModuleDict().add_module(key, nn.Identity())
        except (KeyError, TypeError) as error:
            what = f"key {key!r} of layer {first} cannot name a module: {error.args[0]}"
            raise TieUnresolvedError(what, "give the tie another key: letters, digits and underscores") from error
    for key, other in misspelled({key: len(where) for key, where in layers.items()}).items():
        what = f'only layer {layers[key][0]} has the key "{key}"; did you mean "{other}" of layer {layers[other][0]}?'
        raise TieUnresolvedError(what, "give both the same key, or write a LayerSpec where nothing is tied")


def misspelled(uses: Mapping[str, int]) -> dict[str, str]:
    """The later one of two keys that differ by a letter or two -> the other one; keys that differ in digits are not meant.

    Args:
        uses (Mapping[str, int]): key -> number of its layers, in order; one that has several is never misspelled.
    """
    found: dict[str, str] = {}
    for key in [key for key, number in uses.items() if number == 1]:
        others = [other for other in uses if other != key and other not in found and _digits(other) == _digits(key)]
        earlier = [other for other in others if uses[other] > 1 or list(uses).index(other) < list(uses).index(key)]
        near = difflib.get_close_matches(key, earlier, n=1, cutoff=0.85)
        if near:
            found[key] = near[0]
    return found


def _digits(key: str) -> str:
    return "".join(c for c in key if c.isdigit())
