"""Which edits are offered: those after which a check finds nothing more of a key, and nothing new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiespec.fixing.remedy import Remedy, Tie
from tiespec.verdict import Finding, Report

ROUNDS = 3
"""The lists are known only when the keys are right, and what they lack only when their names are."""


@dataclass(frozen=True)
class Examined:
    """All targets, with some files edited.

    Args:
        reports (tuple[Report | None, ...]): on each target; None where it cannot be checked.
        remedies (tuple[Remedy, ...]): of the tied layers of all targets.
    """

    reports: tuple[Report | None, ...]
    remedies: tuple[Remedy, ...]

    def failing(self) -> Iterator[tuple[int, Finding]]:
        """(target, finding) of all that is more than a note."""
        for target, report in enumerate(self.reports):
            for finding in report.findings if report else ():
                if finding.severity != "note":
                    yield target, finding


@dataclass(frozen=True)
class Offer:
    """Edited files, and what a check says of them.

    Args:
        files (Mapping[str, bytes]): absolute path -> new content; empty where nothing is offered.
        examined (Examined): with these files.
    """

    files: Mapping[str, bytes]
    examined: Examined


Files = Mapping[str, bytes]
Edit = Callable[[Files, Sequence[Remedy], set[Tie]], Files]
Examine = Callable[[Files], Examined]


def confirmed(first: Examined, edit: Edit, examine: Examine) -> Offer:
    """The edits that make as many keys right as can be.

    Args:
        first (Examined): the files as they are.
        edit (Edit): the edited files, remedies and keys -> the files with the remedies of these keys.
        examine (Examine): checks with edited files, without touching the user's.
    """
    start = Offer({}, first)
    ties = sorted({y.tie for y in first.remedies if y.names is not None or y.new_key is not None})
    together = _attempt(start, set(ties), edit, examine) if ties else None
    if together is not None or len(ties) < 2:
        return together or start
    offer = start
    for tie in ties:
        offer = _attempt(offer, {tie}, edit, examine) or offer
    return offer


def _attempt(start: Offer, ties: set[Tie], edit: Edit, examine: Examine) -> Offer | None:
    """Edit and check until nothing changes any more; None where the keys are not right then, or something else is wrong."""
    offer = start
    for _ in range(ROUNDS):
        files = edit(offer.files, offer.examined.remedies, ties)
        if files == offer.files:
            break
        ties = ties | {(y.target, y.new_key) for y in offer.examined.remedies if y.tie in ties and y.new_key is not None}
        offer = Offer(files, examine(files))
    return offer if offer.files != start.files and _is_better(start.examined, offer.examined, ties) else None


def _is_better(before: Examined, after: Examined, ties: set[Tie]) -> bool:
    lost = any(b is not None and a is None for b, a in zip(before.reports, after.reports, strict=True))
    left = any((target, f.key) in ties for target, f in after.failing())
    known = {_identity(target, f) for target, f in before.failing()}
    return not lost and not left and all(_identity(target, f) in known for target, f in after.failing())


def _identity(target: int, finding: Finding) -> tuple[int, str, str | None, int | None, str | None]:
    return target, finding.code, finding.key, finding.layer, finding.path
