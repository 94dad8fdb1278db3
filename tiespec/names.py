"""The names of ``tied_weight_attr``: resolved by getattr, as DeepSpeed does, and mapped back to canonical names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tiespec.pipeline import Kind, ListedName


def resolve_listed(module: nn.Module, attr: Any) -> tuple[str, tuple[ListedName, ...]]:
    """The type of a spec's ``tied_weight_attr`` and its names, each resolved on the layer's module.

    Args:
        module (nn.Module): the layer that was built.
        attr (Any): ``TiedLayerSpec.tied_weight_attr``; DeepSpeed wraps a string into a list itself (0.11.2 and later).
    """
    listed_as = type(attr).__name__
    if isinstance(attr, str):
        attr = [attr]
    if not isinstance(attr, Iterable):
        return listed_as, ()
    paths = canonical_paths(module)
    return listed_as, tuple(_resolve(module, name, paths) for name in attr)


def canonical_paths(module: nn.Module) -> dict[int, str]:
    """``id(tensor)`` -> its first name, for every parameter and buffer of a module that stays alive."""
    paths = {id(tensor): name for name, tensor in module.named_buffers()}
    paths.update({id(tensor): name for name, tensor in module.named_parameters()})
    return paths


def _resolve(module: nn.Module, name: Any, paths: dict[int, str]) -> ListedName:
    text = str(name)
    if not isinstance(name, str):
        return ListedName(text, "other", None, True)
    try:
        first, second = read_dotted(module, name), read_dotted(module, name)
    except AttributeError:
        return ListedName(text, "missing", None, True)
    return ListedName(text, _kind(first), paths.get(id(first)), first is second)


def read_dotted(module: Any, name: str) -> Any:
    """``"a.b"`` -> ``module.a.b``, by getattr, as DeepSpeed reads it since 0.16.6 (PR #7208)."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _kind(value: Any) -> Kind:
    if value is None:
        return "none"
    if isinstance(value, nn.Parameter):
        return "parameter"
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "module" if isinstance(value, nn.Module) else "other"


def returning_properties(module: nn.Module) -> tuple[tuple[str, str], ...]:
    """(property, canonical path) of the user's properties of a module's class that return one of its parameters."""
    paths = {id(tensor): name for name, tensor in module.named_parameters()}
    found = []
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        for name in (n for n, v in vars(cls).items() if isinstance(v, property)):
            value = _read_property(module, name)
            if isinstance(value, nn.Parameter) and id(value) in paths:
                found.append((name, paths[id(value)]))
    return tuple(sorted(set(found)))


def _read_property(module: nn.Module, name: str) -> Any:
    try:
        return getattr(module, name)
    except Exception:  # a property that cannot be read is no name for a parameter, whatever it raises
        return None
