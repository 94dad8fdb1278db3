"""What differs from rank to rank, or from release to release."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from random import Random

from tests.differential.faults import fault
from tests.differential.model import Model
from tests.verification import HASH_SEEDS

OLD = "0.16.5"
"""The last release that does not know dotted names, and walks over a set of keys."""


@functools.cache
def orders_differ(names: tuple[str, ...]) -> bool:
    """Whether the first rank walks over a set of these names in another order than the others."""
    code = f"print(list(set({list(names)!r})))"
    orders = {
        subprocess.run(
            [sys.executable, "-S", "-c", code], capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in HASH_SEEDS
    }
    return len(orders) > 1


@fault("set")
def _set(m: Model, random: Random) -> bool:
    if m.stages == 1 or not all(len(listed) > 1 and orders_differ(tuple(listed)) for listed in (m.first, m.last)):
        return False
    m.sets = True
    for end in ("first", "last"):
        m.wrap[end] = random.choice(["set({})", "frozenset({})"])
    return True


@fault("None")
def _none(m: Model, random: Random) -> bool:
    m.wrap["first"] = m.wrap["last"] = "None if {} else ''"
    return True


@fault("list by rank")
def _by_rank(m: Model, random: Random) -> bool:
    if len(m.first) < 2 or len(m.last) < 2:
        return False
    part = random.choice(["[::-1]", "[1:]", "[:-1]"])
    m.wrap["first"] = m.wrap["last"] = f"({{0}} if os.environ.get('RANK', '0') == '0' else {{0}}{part})"
    return True


METHODS = {
    "only the first stage broadcasts": """    def _synchronize_tied_weights(self):
        if self.stage_id == 0:
            super()._synchronize_tied_weights()
""",
    "only the first stage reduces": """    def get_tied_weights_and_groups(self):
        return super().get_tied_weights_and_groups() if self.stage_id == 0 else []
""",
    "the other way round": """    def get_tied_weights_and_groups(self):
        found = super().get_tied_weights_and_groups()
        return found if self.stage_id == 0 else found[::-1]
""",
}


@fault("overridden method")
def _overridden(m: Model, random: Random) -> bool:
    m.methods = [METHODS[random.choice(list(METHODS))]]
    return True


@fault("older release")
def _older(m: Model, random: Random) -> bool:
    """No fault where no name is dotted and there is one key: then it is another healthy pipeline."""
    if m.stages == 1 or m.head == "live" or m.methods is not None or m.keys[0] != m.keys[1]:
        return False
    m.release = OLD
    if random.random() < 0.7:
        _without_dots(m)
    if "shared" in m.body:
        names = [name for name in ("ends", "words", "embed", "tables") if orders_differ((name, "shared"))]
        m.keys, m.sets = (repr(names[0]), repr(names[0])), True
    return True


def _without_dots(m: Model) -> None:
    """Every listed name gets another one without a dot."""
    flat = {"linear.weight": "matrix", "linear.bias": "offset", "norm.weight": "gain", "norm.bias": "shift"}
    m.shared_names = [flat[name] for name in m.shared_names]
    for listed in (m.first, m.last):
        for i, name in enumerate(listed):
            if "." in name and name.startswith("table."):
                m.head_lines.append("self.flat_table = self.table.weight")
                listed[i] = "flat_table"
            elif "." in name:
                flat_name = "flat_" + name.replace(".", "_")
                member = f"    @property\n    def {flat_name}(self):\n        return self.{name}"
                m.members += [member] if member not in m.members else []
                listed[i] = flat_name
