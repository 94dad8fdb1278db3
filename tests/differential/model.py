"""A small pipeline as data, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

BOTH = ("scale", "gain")
"""Parameters that both ends use, beside the word table."""
FIRST = ("position", "norm", "anchor")
"""Parameters that the first layer alone uses; ``anchor`` is frozen."""


@dataclass
class Model:
    """A pipeline whose first and last layer share a word table, with blocks between them.

    Args:
        depth (int): modules around the word table.
        extras (list[str]): further parameters and buffers of the tied module, from ``EXTRAS``.
        head (str): ``fn`` (a ``forward_fn``), ``class`` (a subclass), ``other`` (a class with other names), ``live`` (both ends
            are parts of a model in memory).
        tied (bool): whether the ends have a key.
        body (list[str]): layers between: a name of ``BODY``, or a row as it is written.
        first, last (list[str]): the lists as they are written, before ``wrap``.
        wrap (dict[str, str]): end -> expression around its list, such as ``tuple({})``.
        keys (tuple[str, str]): of the two ends, as Python expressions.
        shared_names (list[str]): the list of the key of the ``shared`` layers.
        extra_lines (list[str]): added to the tied class's constructor.
        members (list[str]): added to the tied class.
        last_arguments (str): further arguments of the last spec.
        head_lines (list[str]): added to the head's constructor, where it is a class of its own.
        head_uses (list[str]): lines of the head's computation before the logits.
        head_forward (str): what the head of another class returns.
        made (list[str]): lines of the file before the layers.
        loss (str): a factor of the loss.
        says_tied (bool | None): ``tie_word_embeddings`` of the tied module's config; None where it has none.
        one_table (bool): whether the model in memory has one word table.
        groups (str): how the parameters are sorted for the optimizer: not at all (``""``), by ``parameter``, by ``module``.
        methods (list[str] | None): of a PipelineModule subclass; None for a list of layers.
        spelled (str): the argument of the ends' specs that has their list.
        first_fn (bool): whether the first layer has a ``forward_fn``, too.
        stages, partition, config, release: how it is run; the release of DeepSpeed is the installed one where it is None.
        sets (bool): whether every rank must have an order of sets of its own.
        faults (list[str]): what was put in.
    """

    depth: int = 0
    extras: list[str] = field(default_factory=list)
    head: str = "fn"
    body: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    wrap: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, str] = ("'ends'", "'ends'")
    shared_names: list[str] = field(default_factory=list)
    extra_lines: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    last_arguments: str = ""
    head_lines: list[str] = field(default_factory=list)
    head_uses: list[str] = field(default_factory=list)
    head_forward: str = "self.table(x)"
    tied: bool = True
    made: list[str] = field(default_factory=list)
    loss: str = ""
    says_tied: bool | None = None
    one_table: bool = True
    groups: str = ""
    methods: list[str] | None = None
    spelled: str = "tied_weight_attr"
    release: str | None = None
    sets: bool = False
    first_fn: bool = False
    sparse: bool = False
    stages: int = 2
    partition: str = "uniform"
    config: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def at(self) -> str:
        """The path of the module that holds the word table, with its dot."""
        return "inner." * self.depth

    def path(self, name: str) -> str:
        """The canonical path of a parameter of the tied class."""
        if self.head == "live":
            return "part.weight"
        place = self.at if name in ("word", "gain", "position") else ""
        return place + name + (".weight" if name in ("word", "position", "norm") else "")


def draw(random: Random) -> Model:
    """A healthy pipeline."""
    m = Model(
        depth=random.choice([0, 0, 1, 2]), head=random.choice(["fn", "fn", "fn", "class", "class", "other", "other", "live"])
    )
    m.extras = [name for name in (*BOTH, "position", "anchor", "table") if random.random() < 0.4]
    if random.random() < 0.3:
        m.extras.append("norm")
    if m.head == "class" and random.random() < 0.4:
        m.extras.append("bias")
    if m.head == "other":
        m.extras = [name for name in m.extras if name not in BOTH]
    if m.head == "live":
        m.extras, m.depth = [], 0
    m.body = random.choices(["block", "block", "function", "module"], k=random.randint(1, 5))
    if random.random() < 0.35:
        for _ in range(random.randint(2, 3)):
            m.body.insert(random.randint(0, len(m.body)), "shared")
        m.shared_names = ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
        random.shuffle(m.shared_names)
    names = [m.path("word"), *(m.path(name) for name in BOTH if name in m.extras)]
    random.shuffle(names)
    m.first, m.last = list(names), ["table.weight"] if m.head == "other" else list(names)
    if random.random() < 0.2 and m.head != "live":
        _alias(m, random)
    if random.random() < 0.15:
        m.says_tied = True
    if random.random() < 0.2:
        m.groups = random.choice(["parameter", "module"]) if m.head in ("fn", "class") else "parameter"
    if random.random() < 0.15:
        m.methods = []
    m.stages = random.choice([1, 2, 2, 2, 2, 2, 3, 3])
    m.stages = min(m.stages, len(m.body) + 2)
    m.partition = random.choice(["uniform", "uniform", "parameters"])
    m.config = random.choice(CONFIGS)
    return m


CONFIGS: list[dict[str, Any]] = [
    {}, {}, {}, {},
    {"zero_optimization": {"stage": 1}},
    {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    {"bf16": {"enabled": True}},
]  # fmt: skip


def _alias(m: Model, random: Random) -> None:
    """Name the word table by a property, or by a second registration."""
    if random.random() < 0.5:
        m.members.append(f"    @property\n    def alias(self):\n        return self.{m.path('word')}")
    else:
        m.extra_lines.append(f"self.alias = self.{m.path('word')}")
    names = (m.first, m.last) if m.head != "other" else (m.first,)
    for listed in names:
        listed[listed.index(m.path("word"))] = "alias"
