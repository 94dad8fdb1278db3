"""Models that are hard on the patched PipelineModule; and what it must refuse, on every rank of the job."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed import run, same
from tests.rules.models import PARTS
from tests.runtime.test_patched import RECIPE, STEPS, trains_right
from tests.verification import verified

Write = Callable[..., str]

TRAINS = {
    "changed in place": "def layers():\n    names = ['word.weight', 'scale']\n    return [tie(names), nn.ReLU(inplace=True), LayerSpec(Block), nn.ReLU(inplace=True), tie(names, logits)]\n",
    "a mask beside": "class Masked(Embedding):\n    def forward(self, tokens):\n        return (tokens > 3).float(), super().forward(tokens)\n"
    "def used(pair):\n    mask, x = pair\n    return x * (1 + mask.bool()).unsqueeze(2)\n"
    "def layers():\n    names = ['word.weight', 'scale']\n    return [tie(names, None, Masked), used, LayerSpec(Block), LayerSpec(Block), tie(names, logits, Masked)]\n",
}


@pytest.mark.parametrize("name", TRAINS)
def test_trains_right(name: str, write: Write) -> None:
    file = Path(write(PARTS + TRAINS[name]))
    seen = run(file, "layers", steps=STEPS, resume=True, patched=True)
    trains_right(seen, file, "layers")
    last = max(layer for _, layer in seen.trained)
    assert same(seen.copies([0, last], "word.weight"))


def test_a_tie_without_parameters(write: Write) -> None:
    source = "def layers():\n    quiet = lambda: tie([], None, nn.Tanh, key='quiet')\n    return [LayerSpec(nn.Embedding, 11, 8), quiet(), LayerSpec(Block), LayerSpec(Block), quiet(), LayerSpec(nn.Linear, 8, 11)]\n"
    file = Path(write(PARTS + source))
    trains_right(run(file, "layers", steps=STEPS, resume=True, patched=True), file, "layers")


APART = "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), LayerSpec(Block), LayerSpec(Block), LayerSpec(nn.Linear, 8, 11, bias=False)]\n"
TIE = {"key": "word", "by_layer": {"0": ["weight"], "3": ["weight"]}}


@pytest.mark.parametrize("stages", [1, 2])
def test_layers_that_are_built_apart_are_tied(stages: int, write: Write) -> None:
    seen = run(Path(write(PARTS + APART)), "layers", stages=stages, steps=2, patched=True, module={"ties": [TIE]})
    assert seen.outcome == "ok", seen.output[-2000:]
    for when in ("built", "trained"):
        assert same(seen.copies([0, 3], "weight", when))


REFUSED = {
    "overlapping ties": (APART, 2, 1, {"ties": [TIE, {"key": "more", "by_layer": {"0": ["weight"], "2": ["linear.weight"]}}]}),
    "a layer with a key": (RECIPE, 2, 1, {"ties": [TIE]}),
    "max_norm": (
        "class Bounded(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word = nn.Embedding(11, 8, max_norm=1.0)\n"
        "def layers():\n    names = ['word.weight']\n    return pipeline(tie(names, None, Bounded), tie(names, logits, Bounded))\n",
        2,
        1,
        {},
    ),
    "two ties of one key": (APART, 2, 1, {"ties": [TIE, TIE]}),
    "three layouts": (
        "class Other(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w, self.b = nn.Parameter(torch.rand(8, 8)), nn.Parameter(torch.rand(8))\n    def forward(self, x):\n        return F.linear(x, self.w, self.b)\n"
        "def layers():\n    a = tie(['weight', 'bias'], None, nn.Linear, 8, 8, key='a')\n    b = tie(['bias', 'weight'], None, nn.Linear, 8, 8, key='a')\n    c = tie(['w', 'b'], None, Other, key='a')\n"
        "    return [LayerSpec(nn.Embedding, 11, 8), a, LayerSpec(Block), b, c, LayerSpec(nn.Linear, 8, 11)]\n",
        3,
        1,
        {},
    ),
    "another list on one data-parallel copy": (
        "import os\ndef layers():\n    names = ['word.weight'] if os.environ['RANK'] == '0' else ['word.weight', 'scale']\n    return pipeline(tie(names), tie(names, logits))\n",
        2,
        2,
        {},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_every_rank(name: str, write: Write) -> None:
    source, stages, data_parallel, module = REFUSED[name]
    seen = run(Path(write(PARTS + source)), "layers", stages=stages, data_parallel=data_parallel, patched=True, module=module)
    assert (seen.outcome, len(seen.errors), len(set(seen.errors.values()))) == ("crash", stages * data_parallel, 1), seen.errors
    assert seen.errors[0].startswith(("TieMismatchError", "TieUnresolvedError"))


def test_universal_checkpoints_know_the_copies_and_nothing_else(write: Write) -> None:
    source = RECIPE + (
        "def parameter_groups(module):\n    print('PATTERNS', module.universal_checkpoint_info['pipeline_replicated_parameter_patterns'])\n"
        "    print('NAMES', [n for n, _ in module.named_parameters()])\n    return list(module.parameters())\n"
    )
    output = run(Path(write(PARTS + source)), "layers", steps=1, patched=True).output
    patterns = re.findall(r"'(\^[^']*\$)'", next(line for line in output.splitlines() if line.startswith("PATTERNS")))
    patterns = [pattern.replace("\\\\", "\\") for pattern in patterns]
    names = {name for line in output.splitlines() if line.startswith("NAMES") for name in re.findall(r"'([^']*)'", line)}
    copies = {name for name in names if any(re.match(pattern, name) for pattern in patterns)}
    assert copies == {name for name in names if name.startswith("tied_modules.")}
    assert len(names) > len(copies) > 0


def test_what_is_patched_already(write: Write) -> None:
    source = RECIPE.replace("def layers", "def inner") + (
        "class Pipe(PipelineModule):\n    def __init__(self, **kwargs):\n        super().__init__(layers=inner(), loss_fn=loss_fn, **kwargs)\n"
        "def patched_pipe():\n    import tiespec\n    return tiespec.patched(Pipe)(num_stages=2, partition_method='uniform')\n"
        "def layers():\n    import tiespec\n    return tiespec.PipelineModule(layers=inner(), num_stages=2, loss_fn=loss_fn)\n"
    )
    file = write(PARTS + source)
    for name in ("patched_pipe", "layers"):
        for patched in (False, True):
            said = verified(f"{file}:{name}", patched=patched)["verify"]
            assert said.get("outcome") == "ok", said
