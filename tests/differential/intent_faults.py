"""What a model means and its pipeline does not do: weights that are shared, kept apart or declared; optimizer groups; closures."""

from __future__ import annotations

from random import Random

from tests.differential.faults import fault
from tests.differential.model import Model


@fault("lost declaration")
def _lost_declaration(m: Model, random: Random) -> bool:
    """The config says that the ends are tied, and they are layers without a key."""
    if m.head == "fn":
        return False
    m.tied, m.says_tied, m.one_table = False, True, False
    return True


@fault("kept apart")
def _kept_apart(m: Model, random: Random) -> bool:
    """A key over two weights: of a model in memory, or by its config."""
    if m.head == "live":
        m.one_table, m.says_tied = False, random.choice([None, False])
    else:
        m.says_tied = False
    return True


@fault("groups by module")
def _groups(m: Model, random: Random) -> bool:
    if m.head not in ("other", "live"):
        return False
    m.groups = "module"
    return True


@fault("stray")
def _stray(m: Model, random: Random) -> bool:
    """A module that only a function holds: between the layers, of the head, or of the loss."""
    where = random.choice(["body", "head", "loss"])
    if where == "head" and m.head not in ("fn", "class"):
        return False
    if where == "loss":
        m.made.append("TEMPERATURE = nn.Parameter(torch.ones(()))")
        m.loss = "TEMPERATURE"
        return True
    m.made.append("STRAY = nn.Linear(HIDDEN, HIDDEN)\ndef strayed(x):\n    return x + STRAY(x.float()).to(x.dtype)\n")
    if where == "head":
        m.head_uses.append("x = strayed(x)")
    else:
        m.body.insert(random.randint(0, len(m.body)), "strayed")
    return True


@fault("shared without a key")
def _shared(m: Model, random: Random) -> bool:
    if m.head == "live" and m.one_table and random.random() < 0.5:
        m.tied = False
        return True
    m.made.append("KEPT = Block()")
    row = random.choice(["LayerSpec(Given, KEPT)", "KEPT"])
    for _ in range(2):
        m.body.insert(random.randint(0, len(m.body)), row)
    return True


@fault("reached through a closure")
def _reached(m: Model, random: Random) -> bool:
    m.made.append("REACHED = nn.LayerNorm(HIDDEN)\ndef reaching(x):\n    return x * REACHED.weight.to(x.dtype)\n")
    for row in ("REACHED", "reaching"):
        m.body.insert(random.randint(0, len(m.body)), row)
    return True


@fault("dtype")
def _dtype(m: Model, random: Random) -> bool:
    if m.head != "other":
        return False
    m.head_lines.append("self.table.double()")
    m.head_forward = "self.table(x.to(self.table.weight.dtype)).float()"
    return True


@fault("view")
def _view(m: Model, random: Random) -> bool:
    if m.head == "live":
        return False
    m.extra_lines.insert(0, f"self.{m.path('word')} = nn.Parameter(torch.rand(HIDDEN, VOCABULARY).t())")
    return True


@fault("max_norm")
def _max_norm(m: Model, random: Random) -> bool:
    """The embedding scales the rows that it looks up, in its own stage."""
    if m.head == "live":
        return False
    m.extra_lines.append(f"self.{m.path('word').removesuffix('.weight')}.max_norm = 0.5")
    return True


@fault("lazy")
def _lazy(m: Model, random: Random) -> bool:
    if m.head in ("other", "live"):
        return False
    m.groups = ""  # no function can sort a parameter that has no shape yet
    m.extra_lines.append("self.lazy = nn.LazyLinear(HIDDEN)")
    m.head_uses.append("x = x + m.lazy(x)")
    for listed in (m.first, m.last):
        listed.append("lazy.weight")
    return True


@fault("no parameter")
def _no_parameter(m: Model, random: Random) -> bool:
    """A buffer, a method or None in both lists."""
    if m.head in ("other", "live"):
        return False
    m.extra_lines.append("self.nothing = None")
    name = random.choice(["nothing", "forward", *(["table"] if "table" in m.extras else [])])
    for listed in (m.first, m.last):
        listed.append(name)
    return True


@fault("swallowed list")
def _swallowed(m: Model, random: Random) -> bool:
    if m.head not in ("fn", "class") or m.head_lines:
        return False
    m.spelled = "tied_weight_attrs"
    return True
