"""Which parameters of a tie do not come back from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiespec.pipeline import Pipeline, Tie
from tiespec.stages import stage_of
from tiespec.usage import Usage


def lost_on_resume(
    pipeline: Pipeline, tie: Tie, listed: Mapping[int, Sequence[str]], usage: Usage, parts: tuple[int, ...]
) -> list[tuple[int, str]]:
    """The (layer, path) that stock DeepSpeed does not restore, of the parameters that get a gradient there.

    An occurrence with ``forward_fn`` is a ``functools.partial``: it writes and reads no file. A stage that has no other
    occurrence of the key gets only the listed parameters, by the broadcast from the first stage of the key
    (``load_state_dir``, seen on 0.19.8).

    Args:
        pipeline (Pipeline): the layers.
        tie (Tie): the key.
        listed (Mapping[int, Sequence[str]]): layer -> canonical paths of its list.
        usage (Usage): nothing is said where it is unknown.
        parts (tuple[int, ...]): from ``stages.cut``.
    """
    stages: dict[int, list[int]] = {}
    for index in tie.layers:
        stages.setdefault(stage_of(index, parts), []).append(index)
    has_file = {s: any(pipeline.layers[i].forward_fn is None for i in stages[s]) for s in stages}
    first = min(stages)
    lost = []
    for stage in (s for s in sorted(stages) if not has_file[s]):
        owner = stages[stage][0]  # the first layer of a key in a stage is the one that is built
        broadcast = set(listed[owner]) if has_file[first] else set()
        for parameter in pipeline.layers[owner].trainable():
            used = any(usage.gets_gradient(i, parameter.path) for i in stages[stage])
            if used and parameter.path not in broadcast:
                lost.append((owner, parameter.path))
    return lost
