"""The patched PipelineModule on real processes, compared with one process that runs the same layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import Run, run, same
from tests.helpers import CASES
from tests.reference import trained_by_one
from tests.rules.models import EXAMPLES, GOOD, PARTS
from tests.rules.parts import BF16

Write = Callable[..., str]

STEPS = 5
RIGHT = ("ok", "hang", "diverge", "wrong-gradient", "wrong-forward", "lost-on-resume")


def _case(name: str) -> dict[str, Any]:
    return json.loads((CASES / name / "case.json").read_text())


def _without_ties_by_parameter() -> list[str]:
    names = sorted(folder.name for folder in CASES.iterdir())
    return [
        n for n in names if _case(n)["real"]["outcome"] in RIGHT and _case(n)["expect"]["codes"] not in (["TIE301"], ["TIE202"])
    ]


def trains_right(seen: Run, file: Path, build: str, tolerance: float = 1e-5, relative: float = 1e-4) -> None:
    """Losses and every parameter as one process trains them; the copies bit for bit; everything back after a resume."""
    assert seen.outcome == "ok", f"{seen.errors}\n{seen.output[-3000:]}"
    losses, right = trained_by_one(file, build, seen, STEPS)
    assert seen.losses == pytest.approx(losses, rel=relative)
    for (_, layer), tensors in seen.trained.items():
        for path, tensor in tensors.items():
            if path in right.get(layer, {}):
                assert torch.allclose(tensor.float(), right[layer][path], atol=tolerance), (layer, path)
    comes_back(seen)


def comes_back(seen: Run) -> None:
    for place, tensors in seen.trained.items():
        for path, tensor in tensors.items():
            assert torch.equal(tensor, seen.resumed[place][path]), (place, path)


@pytest.mark.parametrize("name", _without_ties_by_parameter())
def test_case(name: str) -> None:
    case, file = _case(name), CASES / name / "model.py"
    build = case["target"].partition(":")[2].partition("(")[0]
    seen = run(file, build, stages=case["stages"], partition=case["partition"], steps=STEPS, resume=True, patched=True)
    trains_right(seen, file, build)
    key = case["expect"]["key"]
    for path in case["expect"]["paths"] if key else ():
        copies = [tensors[path] for (_, layer), tensors in seen.trained.items() if path in tensors]
        assert same(copies)


LOST = {
    "plain_list_shared_parameter": {"key": "word", "by_layer": {"0": ["weight"], "3": ["weight"]}},
    "live_gpt2_tie_lost": {"key": "wte", "by_layer": {"0": ["wte.weight"], "3": ["lm_head.weight"]}},
}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", LOST)
def test_ties_by_parameter(name: str, stages: int) -> None:
    case, file = _case(name), CASES / name / "model.py"
    build = case["target"].partition(":")[2].partition("(")[0]
    seen = run(file, build, stages=stages, steps=STEPS, resume=True, patched=True, module={"ties": [LOST[name]]})
    trains_right(seen, file, build)
    (a, b) = (
        tensors[names[0]]
        for layer, names in LOST[name]["by_layer"].items()
        for (_, i), tensors in seen.trained.items()
        if i == int(layer)
    )  # type: ignore[attr-defined]
    assert torch.equal(a, b)


def _examples(*ids: str) -> list[Any]:
    return [e for e in EXAMPLES if e.id in ids]


@pytest.mark.parametrize(
    "example",
    _examples(
        "TIE104",
        "TIE105 generator",
        "TIE105 set",
        "TIE203 order",
        "TIE203 length",
        "TIE206",
        "TIE302",
        "TIE303 head",
        "TIE303 everywhere",
        "TIE401 fp32",
        "TIE107 view with gaps",
    ),
    ids=lambda e: e.id,
)
def test_the_failing_models_of_the_rules(example: Any, write: Write) -> None:
    file = Path(write(PARTS + example.fails))
    seen = run(file, "layers", stages=example.options.get("stages", 2), steps=STEPS, resume=True, patched=True)
    trains_right(seen, file, "layers")


REFUSED = {
    "TIE101": "TieUnresolvedError",
    "TIE102 module": "TieUnresolvedError",
    "TIE102 transpose": "TieUnresolvedError",
    "TIE107 sparse": "TieMismatchError",
    "TIE204 shape": "TieMismatchError",
    "TIE204 frozen": "TieMismatchError",
    "TIE204 dtype": "TieMismatchError",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_the_same_error_on_every_rank(name: str, write: Write) -> None:
    (example,) = _examples(name)
    seen = run(Path(write(PARTS + example.fails)), "layers", patched=True)
    assert seen.outcome == "crash"
    assert len(seen.errors) == 2
    assert len(set(seen.errors.values())) == 1
    assert seen.errors[0].startswith(REFUSED[name])
    assert '"embed"' in seen.errors[0]


def test_two_ranks_with_different_lists(write: Write) -> None:
    source = "import os\n" + GOOD.replace('tie(["word.weight"])', 'tie([["word.weight"], ["scale"]][int(os.environ["RANK"])])')
    seen = run(Path(write(PARTS + source)), "layers", patched=True)
    assert (seen.outcome, len(seen.errors), len(set(seen.errors.values()))) == ("crash", 2, 1)
    for text in ("TieMismatchError", "rank 0", "rank 1", '"embed"', "layer 0", "scale"):
        assert text in seen.errors[0]


THREE = (
    "NAMES = ['linear.weight', 'linear.bias']\n"
    "def layers():\n    again = lambda: tie(NAMES, None, Block, key='block')\n"
    "    return [LayerSpec(nn.Embedding, 11, 8), again(), LayerSpec(Block), again(), again(), LayerSpec(nn.Linear, 8, 11)]\n"
)
RECIPE = next(e for e in EXAMPLES if e.id == "TIE401 fp32").fails


@pytest.mark.parametrize(
    ("stages", "data_parallel", "source"), [(3, 1, THREE), (2, 2, RECIPE), (4, 1, RECIPE)], ids=["pp3", "pp2 dp2", "pp4"]
)
def test_grids(stages: int, data_parallel: int, source: str, write: Write) -> None:
    file = Path(write(PARTS + source))
    seen = run(file, "layers", stages=stages, data_parallel=data_parallel, steps=STEPS, resume=True, patched=True)
    trains_right(seen, file, "layers")


ADAPTER = (
    "class Adapted(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
    "        self.adapter = nn.Linear(8, 8)\n    def forward(self, tokens):\n        return self.adapter(super().forward(tokens))\n"
    "def adapted_logits(m, x):\n    return F.linear(m.adapter(x), m.word.weight)\n"
    "def layers():\n    names = ['word.weight', 'adapter.weight', 'adapter.bias']\n"
    "    return pipeline(tie(names, None, Adapted), tie(names, adapted_logits, Adapted))\n"
)


@pytest.mark.parametrize("source", [RECIPE, ADAPTER], ids=["recipe", "adapter"])
@pytest.mark.parametrize("interval", [0, 1], ids=["", "checkpointed"])
def test_full_precision(source: str, interval: int, write: Write) -> None:
    file = Path(write(PARTS + source))
    module = {"activation_checkpoint_interval": interval, "checkpointable_layers": ["Block"]}
    trains_right(run(file, "layers", steps=STEPS, resume=True, patched=True, module=module), file, "layers")


@pytest.mark.parametrize("source", [RECIPE, ADAPTER], ids=["recipe", "adapter"])
def test_compiled(source: str, write: Write) -> None:
    file = Path(write(PARTS + source))
    seen = run(file, "layers", steps=STEPS, resume=True, patched=True, compile_backend="aot_eager", patience=90)
    trains_right(seen, file, "layers")


FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
ZERO1_SGD = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
OFFLOAD = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}, "zero_force_ds_cpu_optimizer": False}
CONFIGS = {
    "fp32 zero1": ZERO1_SGD,
    "bf16": BF16,
    "bf16 zero1": {**ZERO1_SGD, **BF16},
    "bf16 zero1, fp32 sums": {**ZERO1_SGD, **BF16, **FP32_SUMS},
    "bf16 zero1, fp32 sums, offload": {**ZERO1_SGD, **BF16, **FP32_SUMS, **OFFLOAD},
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("source", [RECIPE, ADAPTER], ids=["recipe", "adapter"])
def test_precisions(config: str, source: str, write: Write) -> None:
    """As the reference, which is fp32, within what the precision allows; the copies are equal bit for bit.

    0.19.8 cannot load the optimizer state that it wrote for bf16 without ZeRO (KeyError: 0, with stock ties too).
    """
    file = Path(write(PARTS + source))
    load = {"load_module_only": config == "bf16"}
    seen = run(file, "layers", ds_config=CONFIGS[config], steps=STEPS, resume=True, load=load, patched=True, patience=90)
    trains_right(seen, file, "layers", *((2e-2, 1e-2) if "bf16" in config else ()))
    for path in ("word.weight", "scale"):
        assert same(seen.copies([0, 3], path))
    assert not same(seen.copies([0], "scale") + seen.copies([0], "scale", "built"))


def test_stock_does_not_load_its_own_bf16_checkpoint(write: Write) -> None:
    """When this fails, ``load_module_only`` above is no longer needed."""
    seen = run(Path(write(PARTS + GOOD)), "layers", ds_config=BF16, resume=True)
    assert set(seen.errors.values()) == {"KeyError: 0"}
