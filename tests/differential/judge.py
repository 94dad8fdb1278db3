"""One case: what `check` says, what stock DeepSpeed does, and what the patched module makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.differential import intent_faults, rank_faults  # noqa: F401 they register theirs
from tests.differential.faults import FAULTS, inject
from tests.differential.model import Model, draw
from tests.differential.source import source
from tests.verification import verified

ORDER = ("crash", "hang", "overwritten", "untrained", "diverge", "wrong-forward", "wrong-gradient", "lost-on-resume")
BEYOND_REPAIR = {
    "crash": ("TIE107", "TIE108", "TIE501", "TIE502", "TIE503", "TIE504"),
    "hang": ("TIE307", "TIE501"),
    "overwritten": ("TIE306",),
    "untrained": ("TIE308",),
    "diverge": ("TIE304", "TIE305", "TIE307", "TIE501"),
}
"""Faults that are not in what the lists say, and end on the patched module as on stock: what cannot be built or run, a method
that is overridden, a key over two weights, a closure, statistics of each stage's own inputs, a declaration without a key,
optimizer groups."""
OF_FAULTS = {("reached through a closure", "diverge"), ("overridden method", "hang")}
"""The same by fault: TIE301 is repaired where layers hold the Parameter, and a reduction that is overridden may have had no gradient
with stock (TIE403)."""


@dataclass
class Judged:
    """What was said of a case, and what happened.

    ``said`` holds the outcomes that `check` allows (the first of its consequences to strike; crash and hang strike first),
    ``real`` the outcome of stock DeepSpeed, ``patched`` that of tiespec's runtime.
    """

    model: Model
    said: tuple[str, ...]
    codes: tuple[str, ...]
    real: str
    patched: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether the verdict is what happened."""
        return self.real in self.said

    @property
    def repaired(self) -> bool:
        """Whether the patched module trains it right or refuses it."""
        if self.patched in ("ok", "refused") or any((f, self.patched) in OF_FAULTS for f in self.model.faults):
            return True
        return bool({*self.codes} & {*BEYOND_REPAIR.get(self.patched, ())}) and (
            self.patched != "crash" or self.real == "crash"
        )


def case(seed: int) -> Model:
    """The pipeline of a seed: a third healthy, the others with one or two faults."""
    random = Random(seed)
    m = draw(random)
    for _ in range(random.choice([0, 0, 1, 1, 1, 2])):
        while not inject(m, random.choice(list(FAULTS)), random):
            pass
    return m


def judge(m: Model, folder: Path) -> Judged:
    """Write the case into a folder, and ask all three."""
    file = folder / "model.py"
    file.write_text(source(m))
    target = f"{file}:layers"
    wanted = {
        "stages": m.stages, "partition": m.partition, "config": m.config, "timeout": 12.0,
        "param_groups": f"{file}:parameter_groups" if m.groups else None, "release": m.release, "sets": m.sets,
    }  # fmt: skip
    stock = verified(target, check=_check(target, m), **wanted)
    patched = verified(target, patched=True, **wanted)
    findings = stock["check"].get("findings", [])
    consequences = {f["consequence"] for f in findings if f["severity"] != "note"} - {"none"}
    if any(f["code"] == "TIE205" for f in findings):  # which parameters meet is a matter of chance
        consequences |= {"crash"}
    said = ("error",) if "error" in stock["check"] else predicted(consequences)
    codes = tuple(sorted({f["code"] for f in findings}))
    return Judged(m, said, codes, _outcome(stock), _outcome(patched), {"stock": stock, "patched": patched})


def predicted(consequences: set[str]) -> tuple[str, ...]:
    """The outcomes that may be seen first; where a run neither crashes nor hangs, it is one."""
    ending = tuple(c for c in ("crash", "hang") if c in consequences)
    return ending or tuple(c for c in ORDER if c in consequences)[:1] or ("ok",)


def _outcome(found: dict[str, Any]) -> str:
    error = found["verify"].get("error")
    if error is None:
        return str(found["verify"]["outcome"])
    return "crash" if error["help"] == "it fails in one process, too" else "error"


def _check(target: str, m: Model) -> dict[str, Any]:
    return {
        "target": target, "setup": None, "input": [], "stages": [m.stages], "partition": m.partition,
        "ds_config": m.config, "by_key": {}, "param_groups": f"{target.partition(':')[0]}:parameter_groups" if m.groups else None,
    }  # fmt: skip
