"""What the spec of a tied layer should say, as data that crosses from the child process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiespec.pipeline import CallSite

Tie = tuple[int, str]
"""A target's position, and a key of it."""


@dataclass(frozen=True)
class Remedy:
    """What the spec of one tied layer says, and should say.

    Args:
        key (str): its key, as it is.
        calls (tuple[CallSite, ...]): the calls that made it, the innermost first; files are absolute.
        listed (tuple[str, ...]): the names of its ``tied_weight_attr``, as they are.
        names (tuple[str, ...] | None): the names as they should be; None where nothing is to change, or nothing is sure.
        new_key (str | None): the key as it should be; None where it is right, or nothing is sure.
        target (int): position among the targets that are checked together.
    """

    key: str
    calls: tuple[CallSite, ...]
    listed: tuple[str, ...]
    names: tuple[str, ...] | None
    new_key: str | None
    target: int = 0

    @property
    def tie(self) -> Tie:
        """Which key of which target it belongs to."""
        return self.target, self.key


def remedy_of(fields: dict[str, Any], target: int) -> Remedy:
    """The remedy that ``dataclasses.asdict`` was given, in another process."""
    calls = tuple(CallSite(**call) for call in fields["calls"])
    names = None if fields["names"] is None else tuple(fields["names"])
    return Remedy(fields["key"], calls, tuple(fields["listed"]), names, fields["new_key"], target)
