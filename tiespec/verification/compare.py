"""What the ranks held, beside each other and beside the reference: differences, and the outcome in one word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tiespec.verdict import Outcome
from tiespec.verification.outcome import Difference, Untrained
from tiespec.verification.task import Place, Plan

Held = dict[tuple[int, int], dict[str, torch.Tensor]]
"""(rank, layer) -> path -> tensor."""


@dataclass(frozen=True)
class Tolerance:
    """What two runs that are the same may differ by, element by element: the sum of

    a part of how far the parameter has moved at most, a part of the element's size, and at least so much.
    """

    moved: float
    size: float
    least: float


FULL = Tolerance(moved=0.02, size=1e-5, least=1e-6)
LOW = Tolerance(moved=0.3, size=0.01, least=1e-3)


@dataclass(frozen=True)
class Compared:
    """All differences that count.

    Args:
        copies: between the copies of a parameter, after training.
        reference: to the one process, after training.
        lost: between what was saved and what was loaded.
        overwritten: between what the model held and what the first broadcast put in its place, where the model keeps it apart.
        untrained: parameters of no layer that were given gradients and were never changed.
        losses: of the ranks.
        right: of the one process.
    """

    copies: list[Difference]
    reference: list[Difference]
    lost: list[Difference]
    overwritten: list[Difference]
    untrained: list[Untrained]
    losses: list[float]
    right: list[float]


def compare(folder: str, plan: Plan, losses: list[float], low: bool) -> Compared:
    """Read what the processes have written, and compare it.

    Args:
        folder (str): the task's.
        plan (Plan): which parameters are used where.
        losses (list[float]): of the ranks.
        low (bool): whether the ranks ran in a precision below fp32.
    """
    built, trained, resumed = (read_held(folder, when) for when in ("built", "trained", "resumed"))
    reference = torch.load(Path(folder, "reference.pt"), weights_only=True)
    told = json.loads(Path(folder, "reference.json").read_text())
    shared = [[(int(layer), str(path)) for layer, path in places] for places in told["shared"]]
    strays = list(_strays(plan, trained, folder))
    copies = [d for d in strays if isinstance(d, Difference)]
    copies += [d for places in (*shared, *_buffers(plan)) for d in _between_copies(plan, trained, places)]
    against = list(_against(plan, built, trained, reference, LOW if low else FULL))
    return Compared(
        copies,
        against,
        list(_lost(plan, trained, resumed)),
        list(_overwritten(plan, folder)),
        [d for d in strays if isinstance(d, Untrained)],
        losses,
        told["losses"],
    )


def outcome_of(compared: Compared, low: bool) -> Outcome:
    """The one word: what is wrong first."""
    if compared.overwritten:
        return "overwritten"
    if compared.untrained:
        return "untrained"
    if any(d.counts for d in compared.copies):
        return "diverge"
    first, right = compared.losses[0], compared.right[0]
    if not abs(first - right) <= (0.05 if low else 1e-3) * max(1e-3, abs(right)):
        return "wrong-forward"
    if any(d.counts for d in compared.reference):
        return "wrong-gradient"
    return "lost-on-resume" if any(d.counts for d in compared.lost) else "ok"


def read_held(folder: str, when: str) -> Held:
    """What every rank held."""
    held: Held = {}
    for file in Path(folder).glob(f"{when}[0-9]*.pt"):
        rank = int(file.stem.removeprefix(when))
        held |= {(rank, layer): found for layer, found in torch.load(file, weights_only=True).items()}
    return held


def _of_ranks(folder: str, name: str) -> list[tuple[int, Path]]:
    """The file that every rank has written."""
    return sorted((int(file.stem.removeprefix(name)), file) for file in Path(folder).glob(f"{name}[0-9]*"))


def _strays(plan: Plan, trained: Held, folder: str) -> Iterator[Difference | Untrained]:
    """What no layer of a rank holds and no optimizer changes: its own copy of a layer elsewhere, or nobody's."""
    owners = [(layer, path, held[path]) for layer, path in plan.reached for (_, at), held in trained.items() if at == layer]
    for rank, file in _of_ranks(folder, "untrained"):
        for name, tensor in torch.load(file, weights_only=True):
            of = next(((layer, path, largest(tensor, own)) for layer, path, own in owners if own.shape == tensor.shape), None)
            if of is None:
                yield Untrained(rank=rank, name=name, shape=list(tensor.shape))
            else:
                yield Difference(rank=rank, layer=of[0], path=of[1], largest=of[2], counts=of[2] != 0)


def _overwritten(plan: Plan, folder: str) -> Iterator[Difference]:
    apart = {place for pair in plan.apart for place in pair}
    for rank, file in _of_ranks(folder, "received"):
        for layer, path, size in json.loads(file.read_text()):
            if (layer, path) in apart:
                yield Difference(rank=rank, layer=layer, path=path, largest=size, counts=True)


def _buffers(plan: Plan) -> list[list[Place]]:
    """Buffers of the layers of a key that a forward pass changes."""
    tied: dict[tuple[int, ...], None] = {tuple(layer for layer, _ in row): None for row in plan.rows}
    return [[(i, path) for i in layers if path in plan.buffers[i]] for layers in tied for path in plan.buffers[layers[0]]]


def _is_used(plan: Plan, layer: int, path: str) -> bool:
    return plan.used is None or path in plan.used[layer] or path in plan.buffers[layer]


def _between_copies(plan: Plan, trained: Held, places: list[Place]) -> Iterator[Difference]:
    """Copies must be equal bit by bit: they began so and got the same gradient.

    Where one gets no gradient because it is not used it does no harm; a frozen one is compared with those that are trained.
    """
    is_trained = any(_is_used(plan, layer, path) for layer, path in places)
    held = [
        (rank, layer, path, tensors[path])
        for layer, path in places
        for (rank, at), tensors in sorted(trained.items())
        if at == layer and path in tensors and (_is_used(plan, layer, path) or (is_trained and path in plan.frozen[layer]))
    ]
    for rank, layer, path, tensor in held[1:]:
        size = largest(held[0][3], tensor)
        yield Difference(rank=rank, layer=layer, path=path, largest=size, counts=size != 0)


def _against(
    plan: Plan, built: Held, trained: Held, reference: dict[int, dict[str, torch.Tensor]], near: Tolerance
) -> Iterator[Difference]:
    for (rank, layer), tensors in sorted(trained.items()):
        for path, tensor in tensors.items():
            right = reference.get(layer, {}).get(path)
            if right is None or right.shape != tensor.shape or not _is_used(plan, layer, path):
                continue
            start = built[rank, layer][path]
            allowed = near.least + near.moved * largest(right, start) + near.size * right.abs().double()
            beyond = bool(((tensor.double() - right.double()).abs() > allowed).any())
            size = largest(tensor, right)
            yield Difference(rank=rank, layer=layer, path=path, largest=size, counts=beyond or size == float("inf"))


def _lost(plan: Plan, trained: Held, resumed: Held) -> Iterator[Difference]:
    for (rank, layer), tensors in sorted(trained.items()):
        for path, tensor in tensors.items():
            again = resumed[rank, layer][path]
            size = largest(tensor, again)
            yield Difference(rank=rank, layer=layer, path=path, largest=size, counts=size != 0 and _is_used(plan, layer, path))


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors; infinite where their shapes differ or one is not finite alone."""
    if a.shape != b.shape:
        return float("inf")
    differ = ~((a == b) | (a.isnan() & b.isnan()))
    if not bool(differ.any()):
        return 0.0
    size = float((a.double() - b.double()).abs()[differ].max())
    return float("inf") if size != size else size
