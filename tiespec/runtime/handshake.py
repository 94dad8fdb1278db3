"""What the ranks tell each other about their ties before the first collective, and what a difference is called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import TiedLayerSpec
from torch import nn
from torch.nn.parameter import is_lazy

from tiespec.errors import TieError, TieMismatchError, TieUnresolvedError


def names_of(spec: TiedLayerSpec) -> list[str]:
    """The names of a spec, read once: a generator is empty afterwards, a set has no order."""
    names = spec.tied_weight_attr
    if not isinstance(names, list):
        listed = [names] if isinstance(names, str) else list(names)
        other = next((name for name in listed if not isinstance(name, str)), None)
        if other is not None:
            raise TieUnresolvedError(f'tied_weight_attr of key "{spec.key}" has {other!r}, which is no name', "write strings")
        names = spec.tied_weight_attr = sorted(listed) if isinstance(names, (set, frozenset)) else listed
    return list(names)


def read(module: Any, name: str) -> Any:
    """A dotted name; stock reads dots since 0.16.6."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def layout(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a module's parameters."""
    return [(name, tuple(p.shape)) for name, p in module.named_parameters() if not is_lazy(p)]


def tell(here: Any) -> dict[str, Any]:
    """What a rank tells the others: all keys and lists as it knows them, and what it holds."""
    specs = [
        (str(spec.key), index, names_of(spec), f"{spec.typename.__module__}.{spec.typename.__qualname__}")
        for index, spec in enumerate(here._layer_specs)
        if isinstance(spec, TiedLayerSpec)
    ]
    local = here._layer_specs[here._local_start : here._local_stop]
    owners = {str(spec.key): spec for spec in reversed(local) if isinstance(spec, TiedLayerSpec)}
    held = {str(key): _described(module, names_of(owners[str(key)])) for key, module in here.tied_modules.items()}
    told = {"rank": here.global_rank, "stage": here.stage_id, "specs": specs, "ties": here._parameter_ties}
    told["wrong"] = here._wrong
    return {**told, "held": held, "tied": {key: _tied(here, by_layer) for key, by_layer in here._parameter_ties}}


def local_layers(here: Any, by_layer: Mapping[int, Sequence[str]]) -> list[int]:
    """The layers of a tie by parameter that are in this rank's stage."""
    return [layer for layer in sorted(by_layer) if here.stage_owner(layer) == here.stage_id]


def _tied(here: Any, by_layer: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """The tensors of a tie by parameter in this stage, and what is wrong with their names."""
    tensors: list[Any] = []
    for layer in local_layers(here, by_layer):
        module, found = here.forward_funcs[layer - here._local_start], []
        for name in by_layer[layer]:
            try:
                tensor = read(module, name)
            except AttributeError as error:
                return {"tensors": [], "wrong": f'"{name}" of layer {layer} does not resolve: {error}'}
            if not isinstance(tensor, nn.Parameter):
                return {"tensors": [], "wrong": f'"{name}" of layer {layer} is no Parameter'}
            if is_lazy(tensor):
                return {"tensors": [], "wrong": f'"{name}" of layer {layer} is of a lazy module: it has no tensor yet'}
            found.append(_tensor(tensor))
        if tensors and tensors != found:
            return {"tensors": [], "wrong": f"{_said_all(found)} of layer {layer} cannot be one with {_said_all(tensors)}"}
        tensors = tensors or found
    return {"tensors": tensors, "wrong": None}


def _tensor(tensor: Any) -> tuple[tuple[int, ...], str, bool]:
    return tuple(tensor.shape), str(tensor.dtype), bool(tensor.requires_grad)


def _described(module: nn.Module, names: Sequence[str]) -> dict[str, Any]:
    paths = {id(p): name for name, p in module.named_parameters()}
    embeddings = [(n, m) for n, m in module.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    lazy = next((name for name, t in (*module.named_parameters(), *module.named_buffers()) if is_lazy(t)), None)
    listed, wrong = [], None if lazy is None else f'"{lazy}" is of a lazy module: it has no tensor yet'
    for name in names:
        try:
            path = paths[id(read(module, name))]
        except AttributeError as error:
            wrong = wrong or f'"{name}" does not resolve: {error}'
        except KeyError:
            wrong = wrong or f'"{name}" is no Parameter of {type(module).__name__}'
        else:
            listed.append(path)
    return {
        "class": type(module).__name__,
        "layout": layout(module),
        "parameters": {n: _tensor(p) for n, p in module.named_parameters() if not is_lazy(p)},
        "buffers": {n: _tensor(b) for n, b in module.named_buffers() if not is_lazy(b)},
        "listed": listed,
        "sparse": [n for n, m in embeddings if m.sparse],
        "max_norm": [n for n, m in embeddings if m.max_norm is not None],
        "wrong": wrong,
    }


def compare(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Every rank has the same data and comes to the same error.

    Raises:
        TieMismatchError, TieUnresolvedError: they name rank, key, layer and name of the first difference.
    """
    for other in everyone[1:]:
        for what in ("specs", "ties"):
            _compare_lists(everyone[0], other, what)
    for told in everyone:
        if told["wrong"]:
            raise TieUnresolvedError(f"rank {told['rank']}: {told['wrong']}", "name Parameters of both layers in their lists")
    for key in everyone[0]["tied"]:
        _compare_tied(key, everyone)
    for key in sorted({key for told in everyone for key in told["held"]}):
        _compare_key(key, [told for told in everyone if key in told["held"]])


def agree(everyone: Sequence[Mapping[str, Any]]) -> None:
    """``compare``, with an error on every rank of the job: also where another data-parallel copy differs.

    Raises:
        TieMismatchError, TieUnresolvedError: the first one that a rank has come to.
    """
    mine = "\0".join(map(repr, (everyone[0]["specs"], everyone[0]["ties"])))
    error: TieError | None = None
    try:
        compare(everyone)
    except TieError as found:
        error = found
    number = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:7], "big")
    state = torch.tensor([number, -number, int(error is not None)], device=get_accelerator().current_device_name())
    dist.all_reduce(state, op=dist.ReduceOp.MAX)
    largest, smallest, failed = state.tolist()
    if largest == -smallest and not failed:
        return
    said: list[Any] = [None] * dist.get_world_size()
    first = {name: everyone[0][name] for name in ("rank", "specs", "ties")}
    dist.all_gather_object(said, (None if error is None else (type(error).__name__, error.message, error.help), first))
    for name, message, help in (found for found, _ in said if found is not None):
        raise (TieUnresolvedError if name == "TieUnresolvedError" else TieMismatchError)(message, help)
    for _, other in said[1:]:
        for what in ("specs", "ties"):
            _compare_lists(said[0][1], other, what)


def _compare_tied(key: str, everyone: Sequence[Mapping[str, Any]]) -> None:
    for told in everyone:
        if told["tied"][key]["wrong"]:
            what = f'tie "{key}" on rank {told["rank"]}: {told["tied"][key]["wrong"]}'
            raise TieUnresolvedError(what, "name Parameters of the layers in ties=")
    tellers = [told for told in everyone if told["tied"][key]["tensors"]]
    for other in tellers[1:]:
        mine, theirs = tellers[0]["tied"][key]["tensors"], other["tied"][key]["tensors"]
        if mine != theirs:
            _differ(f'tie "{key}"', tellers[0], _said_all(mine), other, _said_all(theirs))


def _compare_lists(first: Mapping[str, Any], other: Mapping[str, Any], what: str) -> None:
    for a, b in zip(first[what], other[what], strict=False):
        if a != b:
            _differ("the layers", first, _said(a), other, _said(b))
    if len(first[what]) != len(other[what]):
        _differ("the layers", first, f"{len(first[what])} tied layers", other, f"{len(other[what])}")


def _differ(what: str, first: Mapping[str, Any], mine: str, other: Mapping[str, Any], theirs: str) -> NoReturn:
    message = f"{what} differ: rank {first['rank']} has {mine}, rank {other['rank']} has {theirs}"
    raise TieMismatchError(message, "build the same layers, with the same sizes, on every rank")


def _said(entry: Sequence[Any]) -> str:
    if len(entry) == 4:
        return f'key "{entry[0]}" at layer {entry[1]} ({entry[3]}) with the names {entry[2]}'
    return f'tie "{entry[0]}" of {entry[1]}'


def _said_all(tensors: Sequence[Any]) -> str:
    return ", ".join(_said_tensor(t) for t in tensors)


def _said_tensor(entry: Sequence[Any]) -> str:
    return f"{entry[1]} {list(entry[0])}{'' if entry[2] else ' (frozen)'}"


def _compare_key(key: str, tellers: Sequence[Mapping[str, Any]]) -> None:
    for told in tellers:
        held = told["held"][key]
        if held["wrong"]:
            what = f'key "{key}" on rank {told["rank"]}: {held["wrong"]}'
            raise TieUnresolvedError(what, "name Parameters of the layer in tied_weight_attr")
        if held["sparse"]:
            what = f'key "{key}": the gradients of {held["sparse"][0]} are sparse, and are not reduced between stages'
            raise TieMismatchError(what, "build it with sparse=False")
        if held["max_norm"]:
            what = f'key "{key}": {held["max_norm"][0]} has max_norm: its weight is rescaled where it is looked up, in one copy'
            raise TieMismatchError(what, "build it without max_norm")
    whole = same_layout([told["held"][key] for told in tellers])
    for told in tellers[1:]:
        _compare_held(key, tellers[0], told, whole)


def same_layout(held: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the module of a key has the same parameters on all stages; then all of it is tied."""
    return all(other["layout"] == held[0]["layout"] for other in held)


def _compare_held(key: str, first: Mapping[str, Any], other: Mapping[str, Any], whole: bool) -> None:
    a, b = first["held"][key], other["held"][key]
    what = f'the copies of key "{key}"'
    if whole:
        pairs = [(name, name) for name in a["parameters"]]
    elif len(a["listed"]) == len(b["listed"]) and _repeats(a["listed"]) == _repeats(b["listed"]):
        pairs = list(zip(a["listed"], b["listed"], strict=True))
    else:
        _differ(what, first, f"{a['class']} with {a['listed']}", other, f"{b['class']} with {b['listed']}")
    for mine, theirs in pairs:
        one, two = a["parameters"][mine], b["parameters"][theirs]
        if one != two:
            _differ(what, first, f'"{mine}" {_said_tensor(one)}', other, f'"{theirs}" {_said_tensor(two)}')


def _repeats(names: Sequence[str]) -> list[int]:
    """For each name, where it is first listed: a Parameter that is listed twice must be so on every stage."""
    return [names.index(name) for name in names]
