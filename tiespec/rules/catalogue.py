"""What a rule is, what it finds, and how it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tiespec.rules.context import Context
from tiespec.verdict import Consequence, Severity


@dataclass(frozen=True)
class Place:
    """A fact about one layer.

    Args:
        layer (int): 0-based.
        text (str): the fact.
        path (str | None): the parameter it is about.
    """

    layer: int
    text: str
    path: str | None = None


@dataclass(frozen=True)
class Found:
    """What a rule has found.

    Args:
        message (str): the fact with names, layers and stages.
        help (str): what to write instead.
        key (str | None): of the tie.
        layer (int | None): the layer whose line is shown, 0-based.
        path (str | None): the parameter, or the name as it is written.
        places (tuple[Place, ...]): the facts, layer by layer.
        stages (tuple[int, ...]): the stage counts in which it occurs; empty when that does not matter.
        consequence (Consequence | None): where it differs from the rule's own.
    """

    message: str
    help: str
    key: str | None = None
    layer: int | None = None
    path: str | None = None
    places: tuple[Place, ...] = ()
    stages: tuple[int, ...] = ()
    consequence: Consequence | None = None


@dataclass(frozen=True)
class Undecided:
    """What a rule could not decide, and what to pass to decide it."""

    message: str
    help: str


Find = Callable[[Context], Iterator[Found | Undecided]]


@dataclass(frozen=True)
class Rule:
    """An entry of the catalogue.

    Args:
        code (str): such as ``"TIE401"``.
        name (str): the bad pattern, in kebab-case.
        severity: how it is counted.
        consequence: what stock DeepSpeed does when the pattern runs.
        find (Find): finds it.
        text (str): the documentation, Markdown.
    """

    code: str
    name: str
    severity: Severity
    consequence: Consequence
    find: Find = field(repr=False)
    text: str = field(repr=False)


RULES: dict[str, Rule] = {}
"""Code -> rule, in the order of the catalogue."""


def rule(code: str, name: str, severity: Severity, consequence: Consequence) -> Callable[[Find], Find]:
    """Register a function as a rule; its docstring is the rule's documentation."""

    def register(find: Find) -> Find:
        RULES[code] = Rule(code, name, severity, consequence, find, inspect.cleandoc(find.__doc__ or ""))
        return find

    return register
