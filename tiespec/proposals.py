"""Layers that share a Parameter, or a storage, without a key: a key that they could have."""

from __future__ import annotations

import re

from tiespec.pipeline import Layer, Parameter, Pipeline
from tiespec.spec import SpecProposal
from tiespec.usage import Usage


def propose_keys(pipeline: Pipeline, usage: Usage) -> list[SpecProposal]:
    """One proposal for each set of layers that share Parameters and have no common key, in order of their layers.

    A Parameter that a layer holds but that gets no gradient there ties nothing: a live model that every layer has a
    reference to is no tie between all layers.
    """
    places: dict[object, list[tuple[Layer, Parameter]]] = {}
    for layer in pipeline.layers:
        for parameter in (p for p in layer.trainable() if p.numel):
            places.setdefault(_memory(parameter), []).append((layer, parameter))
    groups: dict[tuple[int, ...], list[list[tuple[Layer, Parameter]]]] = {}
    for shared in places.values():
        used = [(y, p) for y, p in shared if usage.gets_gradient(y.index, p.path) is not False]
        if len(used) > 1 and not _have_a_common_key([y for y, _ in used]):
            groups.setdefault(tuple(y.index for y, _ in used), []).append(used)
    taken = {tie.key for tie in pipeline.ties}
    return [_proposal(indices, groups[indices], taken) for indices in sorted(groups)]


def _memory(parameter: Parameter) -> object:
    return (parameter.storage, parameter.span, parameter.shape, parameter.dtype)


def _have_a_common_key(layers: list[Layer]) -> bool:
    return len({layer.key for layer in layers}) == 1 and layers[0].key is not None


def _proposal(indices: tuple[int, ...], shared: list[list[tuple[Layer, Parameter]]], taken: set[str]) -> SpecProposal:
    layer, parameter = shared[0][0]
    key = _free_key(layer, parameter, taken)
    taken.add(key)
    by_layer = {str(i): [p.path for use in shared for y, p in use if y.index == i] for i in indices}
    return SpecProposal(key=key, layers=list(indices), by_layer=by_layer)


def _free_key(layer: Layer, parameter: Parameter, taken: set[str]) -> str:
    """A key from the parameter's module or the layer's class; no dot, and no name that a ModuleDict already has."""
    from torch import nn

    module = parameter.path.rpartition(".")[0].rpartition(".")[2]
    base = module if module and not module.isdigit() else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer.name).lower()
    base = base or "shared"
    key, number = base, 2
    while key in taken or hasattr(nn.ModuleDict, key) or key == "training":
        key, number = f"{base}_{number}", number + 1
    return key
