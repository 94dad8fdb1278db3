"""The tie finder: on small modules, on the models of transformers, and beside accelerate's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tiespec.ties import find_ties


class Bag(nn.Module):
    """A module with the given parameters and buffers."""

    def __init__(self, buffers: dict[str, torch.Tensor] | None = None, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor))
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)


@pytest.fixture(params=["cpu", "meta"])
def device(request: pytest.FixtureRequest) -> Any:
    with torch.device(request.param):
        yield request.param


on_both = pytest.mark.usefixtures("device")


@on_both
def test_one_object_under_several_names() -> None:
    weight = nn.Parameter(torch.zeros(4, 4))
    assert find_ties(Bag(a=weight, b=torch.zeros(4, 4), c=weight)) == [["a", "c"]]


@on_both
def test_one_module_in_two_places() -> None:
    inner = nn.Linear(2, 2)
    outer = nn.ModuleDict({"x": nn.Sequential(inner), "y": inner})
    assert find_ties(outer) == [["x.0.weight", "y.weight"], ["x.0.bias", "y.bias"]]


@on_both
def test_one_storage() -> None:
    weight = torch.zeros(4, 4)
    assert find_ties(Bag(a=weight, b=weight.view(2, 8), c=weight.t())) == [["a", "b", "c"]]


@on_both
def test_overlapping_views() -> None:
    flat = torch.zeros(12)
    assert find_ties(Bag(a=flat[:6], b=flat[5:9], c=flat[9:])) == [["a", "b"]]


@on_both
def test_overlap_through_a_third() -> None:
    flat = torch.zeros(12)
    assert find_ties(Bag(a=flat[:4], b=flat[8:], c=flat[2:10])) == [["a", "b", "c"]]


@on_both
def test_disjoint_views_of_one_storage_are_no_tie() -> None:
    flat = torch.zeros(4, 6)
    assert find_ties(Bag(a=flat[:2], b=flat[2:])) == []
    assert find_ties(Bag(a=flat[:, :3], b=flat[:, 3:])) == []
    assert find_ties(Bag(a=flat[::2], b=flat[1::2])) == []
    assert find_ties(Bag(a=flat[:, :3], b=flat[:, 2:])) == [["a", "b"]]


@on_both
def test_shared_buffers_and_a_buffer_that_is_a_parameters_storage() -> None:
    buffer, weight = torch.zeros(3), torch.zeros(5)
    module = nn.ModuleList([Bag({"b": buffer}, w=weight), Bag({"b": buffer, "c": weight})])
    assert find_ties(module) == [["0.w", "1.c"], ["0.b", "1.b"]]


@on_both
def test_equal_values_and_empty_tensors_are_no_tie() -> None:
    assert find_ties(Bag(a=torch.ones(3), b=torch.ones(3), c=torch.ones(0), d=torch.ones(0))) == []
    empty = torch.ones(0)
    assert find_ties(Bag(a=empty, b=empty.view(0, 2))) == []


@on_both
def test_a_lazy_module() -> None:
    lazy = nn.LazyLinear(3)
    assert find_ties(nn.ModuleList([lazy, lazy, nn.LazyLinear(2)])) == [["0.weight", "1.weight"], ["0.bias", "1.bias"]]


@on_both
def test_a_reused_id_is_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are kept alive while they are compared, so that no id can be given twice."""

    class Fresh(nn.Module):
        @property
        def _parameters(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))}

    module = nn.Module()
    module._modules = {str(i): object.__new__(Fresh) for i in range(50)}
    for part in module._modules.values():
        part.__dict__.update(_buffers={}, _modules={})
    assert find_ties(module) == []  # whose names would be found again is another matter: there are none


def _classes() -> dict[str, tuple[Any, Any]]:
    from transformers.models.auto import modeling_auto as auto

    maps = (auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, auto.MODEL_FOR_MASKED_LM_MAPPING)
    found: dict[str, tuple[Any, Any]] = {}
    for mapping in maps:
        for config in mapping:
            for model in mapping[config] if isinstance(mapping[config], tuple) else (mapping[config],):
                found.setdefault(model.__name__, (model, config))
    return found


def _declared(model: Any) -> list[list[str]]:
    """Groups of names that ``all_tied_weights_keys`` (target -> source) makes one."""
    groups: dict[str, set[str]] = {}
    for target, source in model.all_tied_weights_keys.items():
        joined = groups.get(target, {target}) | groups.get(source, {source})
        for name in joined:
            groups[name] = joined
    return sorted({tuple(sorted(group)) for group in groups.values()})  # type: ignore[type-var,return-value]


def _found(model: Any) -> list[tuple[str, ...]]:
    return sorted(tuple(sorted(group)) for group in find_ties(model))


@pytest.mark.timeout(600)
def test_the_models_of_transformers() -> None:
    """Every class whose default config builds: the ties that are found are the ties that are declared."""
    different, built = {}, 0
    for name, (cls, config_class) in sorted(_classes().items()):
        try:
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                model = cls(config_class())
        except Exception:
            continue
        built += 1
        if _found(model) != _declared(model):
            different[name] = (_found(model), _declared(model))
    print(f"{built} models of transformers were compared")
    assert built > 200
    assert different == {}


def _untied(count: int) -> nn.Module:
    return nn.ModuleList([nn.Linear(1, 1) for _ in range(count // 2)])


def _tied(count: int, ties: int) -> nn.Module:
    pairs = nn.ModuleList([Bag(a=(weight := nn.Parameter(torch.zeros(1))), b=weight) for _ in range(ties)])
    return nn.ModuleList([pairs, _untied(count - 2 * ties)])


def _seconds(function: Callable[[nn.Module], Any], module: nn.Module, repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        function(module)
        taken.append(time.perf_counter() - started)
    return min(taken)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_beside_accelerate(device: str) -> None:
    from accelerate.utils import find_tied_parameters

    with torch.device(device):
        untied, tied = _untied(40_000), _tied(40_000, 10_000)
    assert sorted(map(sorted, find_ties(tied))) == sorted(map(sorted, find_tied_parameters(tied)))
    ours, theirs = _seconds(find_ties, untied), _seconds(find_tied_parameters, untied)
    ours_tied, theirs_tied = _seconds(find_ties, tied), _seconds(find_tied_parameters, tied, 1)
    print(f"{device}: 40,000 parameters without ties: {ours:.3f} s, accelerate {theirs:.3f} s")
    print(f"{device}: 40,000 parameters, 10,000 ties: {ours_tied:.3f} s, accelerate {theirs_tied:.3f} s")
    assert ours <= theirs
    assert 50 * ours_tied <= theirs_tied


@pytest.mark.timeout(600)
def test_growth_is_linear() -> None:
    small, large = _seconds(find_ties, _tied(50_000, 12_500)), _seconds(find_ties, _tied(200_000, 50_000))
    assert large < 4 * small * 1.6
