"""What can be wrong with a pipeline: each changes a healthy one, and says whether it applies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.differential.model import BOTH, Model

Fault = Callable[[Model, Random], bool]
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register a fault. It gives False, and changes nothing, where it does not apply."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return register


def inject(m: Model, name: str, random: Random) -> bool:
    """Put a fault in; False where it does not apply."""
    applied = FAULTS[name](m, random)
    if applied:
        m.faults.append(name)
    return applied


@fault("typo")
def _typo(m: Model, random: Random) -> bool:
    listed = random.choice([m.first, m.last])
    i = random.randrange(len(listed))
    listed[i] = listed[i].replace("e", "ee", 1) if "e" in listed[i] else listed[i] + "s"
    return True


@fault("module")
def _module(m: Model, random: Random) -> bool:
    if m.head == "other" or any(m.path("word") not in listed for listed in (m.first, m.last)):
        return False
    for listed in (m.first, m.last):
        listed[listed.index(m.path("word"))] = m.path("word").removesuffix(".weight")
    return True


@fault("transpose")
def _transpose(m: Model, random: Random) -> bool:
    if m.head == "other" or any(m.path("word") not in listed for listed in (m.first, m.last)):
        return False
    m.members.append(f"    @property\n    def turned(self):\n        return self.{m.path('word')}.t().contiguous()")
    for listed in (m.first, m.last):
        listed[listed.index(m.path("word"))] = "turned"
    return True


@fault("repeated")
def _repeated(m: Model, random: Random) -> bool:
    if m.head == "other" or m.path("word") not in m.first:
        return False
    m.extra_lines.append(f"self.second = self.{m.path('word')}")
    for listed in (m.first, m.last):
        listed.append("second")
    return True


@fault("generator")
def _generator(m: Model, random: Random) -> bool:
    for end in ("first", "last"):
        m.wrap[end] = "(name for name in {})"
    return True


@fault("tuple")
def _tuple(m: Model, random: Random) -> bool:
    m.wrap[random.choice(["first", "last"])] = "tuple({})"
    return True


@fault("invalid key")
def _invalid_key(m: Model, random: Random) -> bool:
    key = random.choice(["'a.b'", "''", "3", "'keys'", "'type'"])
    m.keys = (key, key)
    return True


@fault("lone key")
def _lone_key(m: Model, random: Random) -> bool:
    if m.release is not None:  # the order of three keys is not looked for
        return False
    m.keys = ("'ends'", "'endds'")
    return True


@fault("order")
def _order(m: Model, random: Random) -> bool:
    if len(m.shared_names) and random.random() < 0.5:
        return False
    if m.head == "other" or len(m.last) < 2:
        return False
    m.last.reverse()
    return True


@fault("length")
def _length(m: Model, random: Random) -> bool:
    if len(m.last) < 2:
        return False
    m.last.pop(random.randrange(len(m.last)))
    return True


@fault("shape")
def _shape(m: Model, random: Random) -> bool:
    if m.head != "other":
        return False
    m.head_lines.append("self.table = nn.Linear(HIDDEN, VOCABULARY + 2, bias=False)")
    return True


@fault("frozen at one end")
def _frozen_one(m: Model, random: Random) -> bool:
    if m.head not in ("class", "other"):
        return False
    m.head_lines.append(f"self.{'table.weight' if m.head == 'other' else m.path('word')}.requires_grad_(False)")
    return True


@fault("frozen")
def _frozen(m: Model, random: Random) -> bool:
    if m.head == "live":
        return False
    if m.head == "other":
        m.head_lines.append("self.table.weight.requires_grad_(False)")
    m.extra_lines.append(f"self.{m.path('word')}.requires_grad_(False)")
    return True


@fault("untied")
def _untied(m: Model, random: Random) -> bool:
    drop = [m.path(name) for name in BOTH if name in m.extras and m.path(name) in m.first and m.path(name) in m.last]
    if not drop or len(m.first) < 2:
        return False
    name = random.choice(drop)
    m.first.remove(name)
    m.last.remove(name)
    return True


@fault("untied block")
def _untied_block(m: Model, random: Random) -> bool:
    if not m.shared_names:
        return False
    m.shared_names.pop()
    return True


@fault("forward_fn everywhere")
def _everywhere(m: Model, random: Random) -> bool:
    if m.head != "fn":
        return False
    m.first_fn = True
    return True


@fault("norm of the head")
def _norm_of_the_head(m: Model, random: Random) -> bool:
    if m.head != "fn":
        return False
    m.extra_lines.append("self.last_norm = nn.LayerNorm(HIDDEN)")
    m.head_uses.append("x = m.last_norm(x)")
    return True


@fault("running statistics")
def _running(m: Model, random: Random) -> bool:
    if m.head in ("other", "live"):
        return False
    m.extras.append("running")
    m.head_uses.append("x = m.running(x.transpose(1, 2)).transpose(1, 2).contiguous()")
    return True


@fault("used at one end")
def _used_at_one_end(m: Model, random: Random) -> bool:
    names = [name for name in ("position", "norm") if name in m.extras]
    if not names or m.head == "other":
        return False
    name = random.choice(names)
    at = random.randint(0, len(m.first))
    for listed in (m.first, m.last):
        listed.insert(at, m.path(name))
    return True


@fault("frozen and listed")
def _frozen_and_listed(m: Model, random: Random) -> bool:
    if "anchor" not in m.extras or m.head == "other":
        return False
    for listed in (m.first, m.last):
        listed.append("anchor")
    return True


@fault("sparse")
def _sparse(m: Model, random: Random) -> bool:
    m.sparse = True
    return True


@fault("unknown argument")
def _unknown_argument(m: Model, random: Random) -> bool:
    if m.stages == 1:  # the last spec is not built then, and as it is written it cannot be: there is nothing to compare with
        return False
    m.last_arguments = ", tied_weight_attrs=['word']"
    return True


@fault("one stage")
def _one_stage(m: Model, random: Random) -> bool:
    if m.head == "fn" or m.stages == 1:
        return False
    m.stages = 1
    return True


@fault("zero 2")
def _zero(m: Model, random: Random) -> bool:
    m.config = {**m.config, "zero_optimization": {"stage": 2}}
    return True


@fault("hidden gradient")
def _hidden_gradient(m: Model, random: Random) -> bool:
    m.config = {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    return True


@fault("too many stages")
def _too_many(m: Model, random: Random) -> bool:
    m.stages = len(m.body) + 3
    return True


@fault("head alone")
def _head_alone(m: Model, random: Random) -> bool:
    """As many stages as layers: the last stage is the tied head."""
    if len(m.body) > 2:
        return False
    m.stages, m.partition = len(m.body) + 2, "uniform"
    return True


@fault("default list")
def _default(m: Model, random: Random) -> bool:
    """``tied_weight_attr`` left at its default, ``weight``."""
    m.wrap["first"] = m.wrap["last"] = "'weight' if {} else ''"
    return True
