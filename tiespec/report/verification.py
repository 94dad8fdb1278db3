"""The report of ``tiespec verify``, for people."""

from __future__ import annotations

from collections.abc import Sequence

from tiespec.report.notes import counted
from tiespec.verification.outcome import Difference, Verification, Waiting

SAID = {
    "ok": "every copy is equal, and everything is as one process trains it",
    "refused": "the patched PipelineModule refuses these ties, on every rank",
    "crash": "an exception, on one rank or on all",
    "hang": "the ranks wait for each other",
    "overwritten": "the first broadcast replaced a weight that the model keeps apart",
    "diverge": "copies of a tied parameter differ",
    "wrong-gradient": "the copies agree, and are not what one process trains",
    "wrong-forward": "the first loss is not that of the layers as they are written",
    "untrained": "a parameter of no layer gets gradients, and no optimizer changes it",
    "lost-on-resume": "after loading the checkpoint, a parameter is not what was saved",
}
MOST = 12
"""Differences that are listed."""


def verification_text(found: Verification) -> str:
    """What was run, the outcome, and the figures that show it."""
    which = "patched" if found.patched else "stock"
    ranks = f"{counted(found.stages, 'stage')} x {found.data_parallel} data-parallel, {counted(found.steps, 'step')}"
    lines = [f"{found.target}: DeepSpeed {found.deepspeed}, {which} PipelineModule, {ranks}, input {found.input}"]
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"outcome: {found.outcome} ({SAID[found.outcome]})"]
    lines += [f"  rank {rank}: {text.splitlines()[0] if text else ''}" for rank, text in sorted(found.errors.items())]
    lines += [f"  {_waiting(waiting)}" for waiting in found.waiting]
    lines += _losses(found)
    lines += _differences("overwritten when the pipeline was built", found.overwritten)
    lines += _differences("copies that differ", found.copies)
    lines += _differences("not as in one process", found.reference)
    lines += _differences("lost on resume", found.lost)
    lines += [f"  never changed: {u.name} {u.shape} on rank {u.rank}" for u in found.untrained]
    if found.outcome == "ok":
        lines.append(_agreement(found))
    if found.logs:
        lines.append(f"  what the ranks have printed, and their stacks: {found.logs}")
    return "\n".join(lines) + "\n"


def _waiting(waiting: Waiting) -> str:
    who = f"rank {waiting.rank}" + ("" if waiting.stage is None else f" (stage {waiting.stage})")
    if waiting.operation is None:
        return f"{who} is in no collective; last reported: {waiting.phase}"
    what = ""
    if waiting.path is not None:
        what = f' on "{waiting.path}" of key "{waiting.key}"' + ("" if waiting.layer is None else f" (layer {waiting.layer})")
    asked = f", called by {waiting.asked_by}" if waiting.asked_by else ""
    return f"{who} waits in {waiting.operation}{what}{asked}; last reported: {waiting.phase}"


def _losses(found: Verification) -> list[str]:
    if not found.losses:
        return []
    lines = [f"  loss by step: {', '.join(f'{loss:.6g}' for loss in found.losses)}"]
    if found.reference_losses:
        lines.append(f"  in one process: {', '.join(f'{loss:.6g}' for loss in found.reference_losses)}")
    return lines


def _differences(title: str, differences: Sequence[Difference]) -> list[str]:
    counting = sorted((d for d in differences if d.counts), key=lambda d: (-d.largest, d.layer, d.path, d.rank))
    if not counting:
        return []
    lines = [f"  {title}:"]
    lines += [f"    layer {d.layer} {d.path} on rank {d.rank}: by up to {d.largest:.3g}" for d in counting[:MOST]]
    return lines + ([f"    and {len(counting) - MOST} more"] if len(counting) > MOST else [])


def _agreement(found: Verification) -> str:
    largest = max((d.largest for d in found.reference), default=0.0)
    return (
        f"  {counted(len(found.copies), 'pair')} of copies equal bit by bit; "
        f"{counted(len(found.reference), 'tensor')} within {largest:.2g} of one process; "
        f"{counted(len(found.lost), 'tensor')} back from the checkpoint"
    )
