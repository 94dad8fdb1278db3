"""Where simulated ranks part: data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A collective that a rank starts.

    Args:
        operation (str): ``broadcast``, ``all_reduce``, ``new_group``, ...
        group (tuple[int, ...]): the ranks of its group.
        shape (tuple[int, ...] | None): of the tensor; None where there is none.
        dtype (str | None): of the tensor.
        key (str | None): of the tied module the tensor belongs to.
        layer (int | None): the first layer of the key in the rank's stage, 0-based.
        path (str | None): of the parameter.
    """

    operation: str
    group: tuple[int, ...]
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    key: str | None = None
    layer: int | None = None
    path: str | None = None

    def matches(self, other: Call) -> bool:
        """Whether two ranks of a group may meet in it: the same operation on tensors of the same shape and type."""
        mine, theirs = (self.operation, self.group), (other.operation, other.group)
        return mine == theirs and (self.shape, self.dtype) == (other.shape, other.dtype)

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
    """

    phase: str
    first: int
    second: int
    calls: tuple[Call | None, Call | None]
    deadlock: bool = False

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


def first_parting(traces: dict[int, Trace], phase: str) -> Parting | None:
    """Let the ranks run against each other: a collective goes on when all its members are there.

    Args:
        traces (dict[int, Trace]): rank -> what it starts, in order. A member of a group that is not among them is taken to
            be there.
        phase (str): for the answer.
    """
    at = dict.fromkeys(traces, 0)
    while True:
        heads = {rank: trace[at[rank]] for rank, trace in traces.items() if at[rank] < len(trace)}
        if not heads:
            return None
        ready = _ready(heads, traces)
        if isinstance(ready, tuple):
            return Parting(phase, *ready)
        if not ready:
            return _stuck(heads, traces, at, phase)
        for rank in ready:
            at[rank] += 1


def _ready(heads: dict[int, Call], traces: dict[int, Trace]) -> list[int] | tuple[int, int, tuple[Call, Call]]:
    """The ranks whose collective all members have reached; or two that meet in one and differ."""
    for rank, call in heads.items():
        members = [member for member in call.group if member in traces]
        if all(member in heads and heads[member].group == call.group for member in members):
            for member in members:
                if not call.matches(heads[member]):
                    return rank, member, (call, heads[member])
            return members
    return []


def _stuck(heads: dict[int, Call], traces: dict[int, Trace], at: dict[int, int], phase: str) -> Parting:
    """A rank that waits, and the first member of its group that is elsewhere."""
    rank, call = next(iter(heads.items()))
    other = next(m for m in call.group if m in traces and (m not in heads or heads[m].group != call.group))
    later = traces[other][at[other] :]
    deadlock = any(call.matches(coming) for coming in later)
    return Parting(phase, rank, other, (call, heads.get(other)), deadlock)
