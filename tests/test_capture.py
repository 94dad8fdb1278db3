"""What a pipeline is found to be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

from tests.helpers import HEAD, ROOT, generated
from tiespec.analyse import analyse_object, analyse_target
from tiespec.capture import capture
from tiespec.pipeline import Layer, Location


class Tied(nn.Module):
    """One Parameter under two names, a property for it, a buffer and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.again = self.inner
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))

    @property
    def weight(self) -> nn.Parameter:
        return self.inner.weight

    @property
    def transposed(self) -> torch.Tensor:
        return self.inner.weight.t()

    @property
    def broken(self) -> nn.Parameter:
        raise RuntimeError("never read me")


def layers_of(*items: object) -> tuple[Layer, ...]:
    return capture(list(items), "test").pipeline.layers


def tied(names: object, cls: type = Tied, **kwargs: object) -> Layer:
    return layers_of(TiedLayerSpec("key", cls, tied_weight_attr=names, **kwargs))[0]


def test_parameters_and_buffers() -> None:
    layer = tied("weight")
    found = {p.path: (p.shape, p.dtype, p.requires_grad, p.is_buffer, p.aliases) for p in layer.parameters}
    assert found == {
        "inner.weight": ((2, 3), "float32", True, False, ("again.weight",)),
        "inner.bias": ((2,), "float32", True, False, ("again.bias",)),
        "frozen": ((4,), "float32", False, False, ()),
        "mean": ((5,), "float64", False, True, ()),
    }


def test_specs_are_built_on_meta() -> None:
    captured = capture([LayerSpec(nn.Linear, 10**6, 10**6)], "test")
    assert captured.live[0].module is not None
    assert captured.live[0].module.weight.is_meta


def test_names_are_resolved_by_getattr_and_mapped_back() -> None:
    layer = tied(["weight", "again.weight", "transposed", "inner", "mean", "inner.wait", "again.in_features"])
    found = [(n.text, n.kind, n.path, n.stable) for n in layer.listed]
    assert found == [
        ("weight", "parameter", "inner.weight", True),
        ("again.weight", "parameter", "inner.weight", True),
        ("transposed", "tensor", None, False),
        ("inner", "module", None, True),
        ("mean", "tensor", "mean", True),
        ("inner.wait", "missing", None, True),
        ("again.in_features", "other", None, True),
    ]
    assert layer.properties == (("weight", "inner.weight"),)


def test_the_list_may_be_any_iterable() -> None:
    assert tied("weight").listed_as == "list"  # DeepSpeed wraps it
    assert tied(("weight",)).listed_as == "tuple"
    assert tied(name for name in ("weight",)).listed_as == "generator"
    assert tied(None).listed_as == "NoneType"
    assert tied(None).listed == ()


def test_every_occurrence_is_built_by_itself() -> None:
    first, second = layers_of(TiedLayerSpec("key", Tied), TiedLayerSpec("key", Tied))
    assert not {p.storage for p in first.parameters} & {p.storage for p in second.parameters}
    assert not {p.identity for p in first.parameters} & {p.identity for p in second.parameters}


def test_identity_and_storage_across_layers() -> None:
    weight = nn.Parameter(torch.zeros(6, 4))
    a, b, c = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False), nn.Linear(4, 3, bias=False)
    a.weight = b.weight = weight
    c.weight = nn.Parameter(weight.data[3:])
    one, two, three = (layer.parameters[0] for layer in layers_of(a, b, c))
    assert one.identity == two.identity != three.identity
    assert one.storage == two.storage == three.storage
    assert (one.span, three.span) == ((0, 96), (48, 96))


def test_tensors_on_meta_have_identities_and_storages_too() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[2].weight = model[0].weight
    one, two, three = (layer.parameters[0] for layer in layers_of(*model))
    assert one.identity == three.identity != two.identity
    assert one.storage == three.storage != two.storage


def test_a_lazy_parameter_has_no_shape() -> None:
    (layer,) = layers_of(LayerSpec(nn.LazyLinear, 3))
    assert layer.parameters[0].shape is None
    assert layer.parameters[0].numel == 0


def test_source_lines(write: Callable[..., str]) -> None:
    source = HEAD.lstrip() + (
        "def between(x):\n    return x\n"
        "def build():\n    return [\n"
        "        TiedLayerSpec('e', nn.Linear, 2, 2),\n"
        "        between,\n"
        "        LayerSpec(\n            nn.Linear, 2, 2,\n        ),\n"
        "    ]\n"
    )
    file = write(source)
    lines = [layer.location for layer in analyse_target(f"{file}:build").pipeline.layers]
    start = source.splitlines().index("def build():") + 1
    assert lines == [Location(file, start + 2), Location(file, start - 2), Location(file, start + 4)]


def test_a_live_model_is_left_as_it_was_found() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 5)).eval()
    model[3].weight.grad = gradient = torch.ones(5, 4)
    model[0].register_forward_hook(lambda *_: None)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.random.get_rng_state()
    analysis = analyse_object(model, "model", given=("int64[3]<5",))
    assert analysis.usage.used is not None, analysis.usage.unknown
    assert not model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model[3].weight.grad is gradient
    assert torch.equal(gradient, torch.ones(5, 4))
    assert model[0].weight.grad is None
    assert len(model[0]._forward_hooks) == 1
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert str(model[0].weight.device) == "cpu"


def test_the_numbers_of_stages_and_the_partition_come_from_the_pipeline(write: Callable[..., str]) -> None:
    source = HEAD + (
        "from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology\n"
        "def build():\n    return PipelineModule(layers=[nn.Linear(2, 2)] * 4, num_stages=4, partition_method='uniform')\n"
        "def grid():\n    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=3)\n"
        "    return PipelineModule(layers=[nn.Linear(2, 2)] * 4, topology=topology)\n"
    )
    file = write(source)
    build, grid = (analyse_target(f"{file}:{name}").pipeline for name in ("build", "grid"))
    assert (build.num_stages, build.partition) == (4, "uniform")
    assert (grid.num_stages, grid.partition) == (2, "parameters")


def test_building_takes_no_memory() -> None:
    code = (
        "import resource, sys\nfrom tiespec.analyse import analyse_target\n"
        "analyse_target(sys.argv[1])\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"{ROOT}/examples/large.py:build_layers"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert int(done.stdout.splitlines()[-1]) < 1.5 * 2**20  # KiB


def test_the_large_example_is_400_billion_parameters() -> None:
    pipeline = analyse_target(f"{ROOT}/examples/large.py:build_layers").pipeline
    assert len(pipeline.layers) == 130
    assert 4.0e11 < sum(p.numel for layer in pipeline.layers for p in layer.parameters) < 4.3e11
    assert generated(f"{ROOT}/examples/large.py:build_layers").spec["embed"] == ["word.weight"]
