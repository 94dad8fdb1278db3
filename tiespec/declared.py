"""Ties that a model declares (transformers' ``_tied_weights_keys``) and that its objects do not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from tiespec.names import read_dotted
from tiespec.pipeline import Declared


def declaring(candidates: Iterable[Any]) -> list[nn.Module]:
    """The modules among ``candidates`` that declare ties."""
    found = {id(c): c for c in candidates if isinstance(c, nn.Module) and getattr(c, "_tied_weights_keys", None)}
    return list(found.values())


def lost_declarations(models: Sequence[nn.Module], modules: Sequence[nn.Module | None]) -> tuple[Declared, ...]:
    """The declared ties whose two ends are different Parameters of the pipeline's layers.

    Args:
        models (Sequence[nn.Module]): models that declare ties.
        modules (Sequence[nn.Module | None]): the layers.
    """
    places: dict[int, tuple[int, str]] = {}
    for index, module in enumerate(modules):
        for path, parameter in module.named_parameters() if module is not None else ():
            places.setdefault(id(parameter), (index, path))
    found: dict[Declared, None] = {}
    for model in models:
        for a, b in _declared_pairs(model):
            if a is not b and id(a) in places and id(b) in places:
                found[Declared(type(model).__name__, places[id(b)], places[id(a)])] = None
    return tuple(found)


def _declared_pairs(model: Any) -> Iterator[tuple[Any, Any]]:
    """(parameter, the one it is declared to be). transformers 5 has a dict, older releases a list of names."""
    names = getattr(model, "all_tied_weights_keys", None)
    if isinstance(names, dict):
        pairs = [(target, source) for target, source in names.items()]
        for target, source in pairs:
            yield from _both(model, target, source)
        return
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    for name in model._tied_weights_keys:
        weight = _read(model, name)
        if weight is not None and embeddings is not None:
            yield weight, embeddings.weight


def _both(model: Any, target: str, source: str) -> Iterator[tuple[Any, Any]]:
    first, second = _read(model, target), _read(model, source)
    if first is not None and second is not None:
        yield first, second


def _read(model: Any, name: str) -> Any:
    try:
        value = read_dotted(model, name)
    except AttributeError:
        return None
    return value if isinstance(value, nn.Parameter) else None
