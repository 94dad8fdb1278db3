"""Where simulated ranks part: data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

End = Literal["hang", "crash", "diverge"]


@dataclass(frozen=True)
class Call:
    """A collective that a rank starts.

    Args:
        operation (str): ``broadcast``, ``all_reduce``, ``new_group``, ...
        group (tuple[int, ...]): the ranks of its group.
        sends (bool): whether the rank is the source of a broadcast.
        number (int): of the group, in the order in which they were made; 0 for that of all ranks. Two groups may have the same
            ranks.
        shape (tuple[int, ...] | None): of the tensor; None where there is none.
        dtype (str | None): of the tensor.
        key (str | None): of the tied module the tensor belongs to.
        layer (int | None): the first layer of the key in the rank's stage, 0-based.
        path (str | None): of the parameter.
        row (int | None): equal for the parameters of a key that belong together; None where that is not known.
    """

    operation: str
    group: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    key: str | None = None
    layer: int | None = None
    path: str | None = None
    row: int | None = None
    number: int = 0
    sends: bool = False

    def is_in_group_of(self, other: Call) -> bool:
        """Whether both are in one group."""
        return (self.group, self.number) == (other.group, other.number)

    def meets(self, other: Call) -> bool:
        """Whether two ranks that start them meet: the same operation in the same group."""
        return self.operation == other.operation and self.is_in_group_of(other)

    def matches(self, other: Call) -> bool:
        """Whether they may meet in it: the tensors have the same size and type, too; the ranks of a new group are the same."""
        if not self.meets(other) or self.dtype != other.dtype:
            return False
        if self.operation == "new_group" or self.shape is None or other.shape is None:
            return self.shape == other.shape
        return math.prod(self.shape) == math.prod(other.shape)

    def goes_on(self, other: Call) -> bool:
        """Whether nothing is raised: they match, or a broadcast sends less than the receiver has (gloo, torch 2.13)."""
        if self.matches(other) or not self.meets(other) or self.operation != "broadcast" or self.dtype != other.dtype:
            return self.matches(other)
        source, receiver = (self, other) if self.sends else (other, self)
        return not source.sends or math.prod(source.shape or ()) <= math.prod(receiver.shape or ())

    def is_of_the_same(self, other: Call) -> bool:
        """Whether they should: the tensors have the same shape and belong together, too, as far as that is known."""
        alike = self.matches(other) and self.shape == other.shape
        return alike and (self.row == other.row or None in (self.row, other.row))

    def __str__(self) -> str:
        on = f' of "{self.path}"' if self.path else ""
        layer = f" (layer {self.layer})" if self.layer is not None else ""
        size = f" {self.dtype}{list(self.shape)}" if self.shape is not None else ""
        return f"{self.operation}{on}{layer}{size} in the group {list(self.group)}"


@dataclass(frozen=True)
class Parting:
    """The first point where two ranks of a group do not do the same.

    Args:
        phase (str): ``building`` or ``step``.
        first, second (int): the ranks; without data-parallel copies they are the stages.
        calls (tuple[Call | None, Call | None]): what each starts; None for one that has ended.
        deadlock (bool): each group agrees with itself, and the ranks wait for each other across groups.
        ends (End): what it comes to, later perhaps.
    """

    phase: str
    first: int
    second: int
    calls: tuple[Call | None, Call | None]
    deadlock: bool = False
    ends: End = "hang"

    @property
    def key(self) -> str | None:
        """Of the tie that it is about."""
        return next((call.key for call in self.calls if call is not None and call.key is not None), None)

    def __str__(self) -> str:
        first, second = (str(call) if call is not None else "nothing more" for call in self.calls)
        when = "while the pipeline is built" if self.phase == "building" else "in a step"
        how = ", each in the order of the other group" if self.deadlock else ""
        return f"{when}, rank {self.first} starts {first}, and rank {self.second} starts {second}{how}"


Trace = list[Call]


Match = Callable[[Call, Call], bool]


def first_parting(traces: dict[int, Trace], phase: str, match: Match = Call.matches) -> Parting | None:
    """Let the ranks run against each other: a collective goes on when all its members are there.

    Args:
        traces (dict[int, Trace]): rank -> what it starts, in order. A member of a group that is not among them is taken to
            be there.
        phase (str): for the answer.
        match (Match): what two calls that meet must have in common.
    """
    at = dict.fromkeys(traces, 0)
    while True:
        heads = {rank: trace[at[rank]] for rank, trace in traces.items() if at[rank] < len(trace)}
        if not heads:
            return None
        ready = _ready(heads, traces, match)
        if isinstance(ready, tuple):
            return Parting(phase, *ready)
        if not ready:
            return _stuck(heads, traces, at, phase)
        for rank in ready:
            at[rank] += 1


def _ready(heads: dict[int, Call], traces: dict[int, Trace], match: Match) -> list[int] | tuple[int, int, tuple[Call, Call]]:
    """The ranks whose collective all members have reached; or two that meet in one and differ."""
    for rank, call in heads.items():
        members = [member for member in call.group if member in traces]
        if all(member in heads and heads[member].is_in_group_of(call) for member in members):
            for member in members:
                if not match(call, heads[member]):
                    return rank, member, (call, heads[member])
            return members
    return []


def _stuck(heads: dict[int, Call], traces: dict[int, Trace], at: dict[int, int], phase: str) -> Parting:
    """A rank that waits, and the first member of its group that is elsewhere."""
    rank, call = next(iter(heads.items()))
    other = next(m for m in call.group if m in traces and (m not in heads or not heads[m].is_in_group_of(call)))
    later = traces[other][at[other] :]
    deadlock = any(call.matches(coming) for coming in later)
    return Parting(phase, rank, other, (call, heads.get(other)), deadlock)
