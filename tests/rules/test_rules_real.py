"""Each failing model on real DeepSpeed: what the rule says will happen is what happens; its twin trains right."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import Run, order_differs, run, same
from tests.rules.models import EXAMPLES, PARTS, Example
from tests.rules.test_rules import checked

Write = Callable[..., str]

OLD = [
    ("TIE103", "0.16.5", "crash"),
    ("TIE205", "0.16.5", "hang"),
    ("TIE205 of other stages", "0.16.5", "hang"),
    ("TIE107 transpose at one end, 0.16.5", "0.16.5", "diverge"),
    ("TIE401 fp32", "0.14.5", "crash"),
    ("TIE401 fp32", "0.15.4", "hang"),
    ("TIE402", "0.14.5", "crash"),
]
"""Rules that depend on the release: (example, release, what happens)."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "release", "outcome"), OLD)
def test_on_another_release(name: str, release: str, outcome: str, write: Write) -> None:
    example = next(e for e in EXAMPLES if e.id == name)
    undotted = example.fails if example.code == "TIE103" else example.fails.replace('"word.weight"', '"weight"')
    file = write(PARTS + undotted)
    report = checked(file, {"deepspeed": release})
    assert (report.codes, {f.consequence for f in report.findings}) == ([example.code], {outcome})
    seeds = order_differs(["embed", "norm"]) if example.code == "TIE205" else ()
    seen = run(Path(file), "layers", release=release, hash_seeds=seeds)
    if outcome == "diverge":
        assert (seen.outcome, same(_copies(example, seen))) == ("ok", False)
        return
    assert seen.outcome == outcome, f"{seen.errors}\n{seen.output[-3000:]}"


def test_a_set_of_names_under_two_hash_seeds(write: Write) -> None:
    """The names are of different shapes, so that the ranks do not just mix them."""
    example = next(e for e in EXAMPLES if e.id == "TIE105 set")
    seen = run(Path(write(PARTS + example.fails)), "layers", hash_seeds=order_differs(["word.weight", "scale"]))
    assert seen.outcome in ("hang", "crash") or not same(seen.copies([0, 3], "scale"))


REAL = [e for e in EXAMPLES if e.real and "deepspeed" not in e.options]
TWINS = {e.passes + str(e.passing): e for e in REAL if e.consequence in ("diverge", "wrong-gradient", "lost-on-resume", "hang")}


def trained(example: Example, write: Write, passing: bool = False, **more: Any) -> Run:
    options = dict(example.passing if passing else example.options)
    file = write(PARTS + (example.passes if passing else example.fails))
    resume = example.consequence == "lost-on-resume"
    return run(Path(file), "layers", stages=options.get("stages", 2), ds_config=options.get("ds_config"), resume=resume, **more)


@pytest.mark.parametrize("example", REAL, ids=lambda e: e.id)
def test_what_the_rule_says_is_what_happens(example: Example, write: Write) -> None:
    seen = SEES[example.consequence](example, write)
    assert seen == "", seen


def _crash(example: Example, write: Write) -> str:
    seen = trained(example, write)
    return "" if seen.outcome == "crash" else f"{seen.outcome}, not a crash\n{seen.output[-3000:]}"


def _hang(example: Example, write: Write) -> str:
    seen = trained(example, write)
    return "" if seen.outcome == "hang" else f"{seen.outcome}, not a hang\n{seen.errors}\n{seen.output[-3000:]}"


def _diverge(example: Example, write: Write) -> str:
    seen = trained(example, write)
    if seen.outcome != "ok":
        return f"{seen.outcome}\n{seen.errors}\n{seen.output[-3000:]}"
    return "the copies are equal" if same(_copies(example, seen)) else ""


def _copies(example: Example, seen: Run, when: str = "trained") -> list[torch.Tensor]:
    return [tensor for layer, path in example.copies for tensor in seen.copies([layer], path, when)]


def _wrong_gradient(example: Example, write: Write) -> str:
    """The copies agree, and are not what the twin trains from the same start."""
    wrong, right = (
        trained(example, write, same_seed=True, steps=1),
        trained(example, write, passing=True, same_seed=True, steps=1),
    )
    if (wrong.outcome, right.outcome) != ("ok", "ok"):
        return f"{wrong.outcome}, {right.outcome}\n{wrong.output[-3000:]}"
    if not same(_copies(example, wrong)) or not same(_copies(example, wrong, "built") + _copies(example, right, "built")):
        return "the copies differ"
    return "trained the same" if same(_copies(example, wrong) + _copies(example, right)) else ""


def _wrong_forward(example: Example, write: Write) -> str:
    """With one stage the first loss is not the one of the layers as they are written; with two stages it is."""
    losses = {stages: _first_losses(example, write, stages) for stages in (1, 2)}
    if losses[2][0] != pytest.approx(losses[2][1], rel=1e-5):
        return f"with two stages the loss is {losses[2][0]}, not {losses[2][1]}"
    return f"the loss is right: {losses[1]}" if losses[1][0] == pytest.approx(losses[1][1], rel=1e-5) else ""


def _first_losses(example: Example, write: Write, stages: int) -> tuple[float, float]:
    file = write(PARTS + example.fails)
    seen = run(Path(file), "layers", stages=stages, steps=1)
    assert seen.outcome == "ok", seen.output
    return seen.losses[0], _loss_as_written(file, seen)


def _loss_as_written(file: str, seen: Run) -> float:
    """One process runs the layers one after the other, with the values that the run began with."""
    spec = importlib.util.spec_from_file_location("model_of_a_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    held = {layer: tensors for (_, layer), tensors in seen.built.items()}
    inputs, labels = module.example_inputs()
    for index, layer in enumerate(module.layers()):
        built = layer.build()
        built.load_state_dict(held[index])
        inputs = built(inputs)
    return float(module.loss_fn(inputs, labels))


def _lost_on_resume(example: Example, write: Write) -> str:
    seen = trained(example, write)
    if seen.outcome != "ok":
        return f"{seen.outcome}\n{seen.errors}\n{seen.output[-3000:]}"
    back = same(_copies(example, seen) + _copies(example, seen, "resumed"))
    return "everything came back" if back else ""


def _overwritten(example: Example, write: Write) -> str:
    seen = trained(example, write, steps=1)
    ((layer, path),) = example.copies
    (held,) = seen.copies([layer], path, "built")
    return "the given values are still there" if torch.equal(held, torch.full_like(held, 0.25)) else ""


def _untrained(example: Example, write: Write) -> str:
    """The module outside keeps its values, while the layers are trained."""
    seen = trained(example, write)
    if seen.outcome != "ok":
        return f"{seen.outcome}\n{seen.errors}\n{seen.output[-3000:]}"
    outside = [seen.built[1, -1]["weight"], seen.trained[1, -1]["weight"]]
    inside = [seen.built[0, 1]["linear.weight"], seen.trained[0, 1]["linear.weight"]]
    return "" if same(outside) and not same(inside) else "it was trained"


SEES: dict[str, Callable[[Example, Write], str]] = {
    "crash": _crash,
    "hang": _hang,
    "diverge": _diverge,
    "wrong-gradient": _wrong_gradient,
    "wrong-forward": _wrong_forward,
    "lost-on-resume": _lost_on_resume,
    "overwritten": _overwritten,
    "untrained": _untrained,
}


@pytest.mark.parametrize("example", TWINS.values(), ids=lambda e: e.id)
def test_the_twin_trains_right(example: Example, write: Write) -> None:
    seen = trained(example, write, passing=True)
    assert seen.outcome == "ok", seen.output[-3000:]
    if example.consequence in ("diverge", "hang") and not {example.code, example.id} & UNTIED_TWINS:
        copies = _copies(example, seen) if example.copies else seen.copies([0, 3], "word.weight")
        assert len(copies) == 2
        assert same(copies)
    if example.consequence == "lost-on-resume":
        for layer in (0, 3):
            assert same(seen.copies([layer], "word.weight") + seen.copies([layer], "word.weight", "resumed"))


UNTIED_TWINS = {"TIE301", "TIE304", "TIE307 groups by stage, ZeRO-1"}
"""Their twins tie nothing."""
