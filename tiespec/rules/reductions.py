"""What the ranks of a tie reduce, and what happens where they do not reduce the same."""

from __future__ import annotations

from packaging.version import Version

from tiespec.pipeline import Tie
from tiespec.rules.context import Context, Cut, Shard, is_ordered, positions, shards
from tiespec.verdict import Consequence

SKIPS_NONE_SINCE = Version("0.15.4")
"""The release from which a parameter without a gradient is skipped; older ones pass None to all_reduce."""
WAITS = "the rank with the gradient waits in all_reduce for the one without, until the timeout"


def aligned(context: Context, tie: Tie, cut: Cut) -> list[list[tuple[Shard, str]]]:
    """For each position of the lists, the (stage, canonical path) of every copy; only where all have one."""
    copies = shards(tie, cut)
    owners = [context.pipeline.layers[s.owner] for s in copies]
    if any(y.unbuilt or not is_ordered(y) for y in owners) or len({len(y.listed) for y in owners}) > 1:
        return []
    rows = zip(*(positions(y) for y in owners), strict=True)
    return [
        [(s, p) for s, p in zip(copies, row, strict=True) if p is not None] for row in rows if all(p is not None for p in row)
    ]


def effect_of_missing(context: Context, tie: Tie, counts: tuple[int, ...]) -> tuple[Consequence, str]:
    """What happens when a listed parameter has a gradient on one rank of a tie and none on another, in these numbers of stages.

    Seen on 0.19.8 and 0.14.5 with gloo: the gradients meet in the order of the list, so that of the parameter meets the next one.
    """
    if context.settings.config.hides_gradients:
        return "diverge", "no rank reduces anything, as TIE403 says"
    if context.settings.config.uses_bf16_optimizer:
        return "crash", "DeepSpeed's BF16_Optimizer raises on the rank that has none (_hp_grad)"
    if context.settings.deepspeed < SKIPS_NONE_SINCE:
        return "crash", f"DeepSpeed {context.settings.deepspeed} raises on the rank that has none"
    cut = next(cut for cut in context.cuts if cut.stages == counts[0])
    if context.usage.used is None:
        return "hang", WAITS
    first, *others = _reduced(context, tie, cut)
    if any(a != b for other in others for a, b in zip(first, other, strict=False)):
        return "crash", "its gradient meets that of the next name, which has another size: a rank is aborted"
    if all(len(first) == len(other) for other in others):
        return "diverge", "its gradient is summed with that of another name, which has the same size"
    return "hang", WAITS


def _reduced(context: Context, tie: Tie, cut: Cut) -> list[list[int]]:
    """For each copy of a tie, the sizes of the gradients that it reduces, in order: what has none is skipped."""
    rows = aligned(context, tie, cut)
    return [
        [context.pipeline.layers[s.owner].parameter(p).numel for s, p in column if context.gets_gradient(s, p)]
        for column in zip(*rows, strict=True)
    ]
