"""Where the lists alone do not make training right on stock DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiespec.choices import Choice, layers_text
from tiespec.pipeline import Pipeline, Tie
from tiespec.resume import lost_on_resume
from tiespec.spec import SpecTie
from tiespec.stages import cut, one_layer_per_stage, stage_of
from tiespec.usage import Usage

PATCH = "`tiespec patch` writes a PipelineModule that trains it right"
NO_LIST = "no list is right for stock DeepSpeed (listed it hangs, not listed its copies drift apart)"


@dataclass(frozen=True)
class Remark:
    """Something to know about a key.

    Args:
        key (str): the key.
        message (str): fact and consequence.
        help (str): what to do.
    """

    key: str
    message: str
    help: str


def remarks_on(
    pipeline: Pipeline, tie: Tie, choices: Sequence[Choice], entry: SpecTie, usage: Usage, num_stages: int | None
) -> list[Remark]:
    """What to say about the list of one key.

    Raises:
        UsageError: the layers cannot be cut into so many stages.
    """
    stages = num_stages if num_stages is not None else pipeline.num_stages
    parts = one_layer_per_stage(pipeline) if stages is None else cut(pipeline, stages)
    found = [*_lone(tie), *_empty(tie, entry)]
    if len({stage_of(index, parts) for index in tie.layers}) > 1:
        found += [*_unknown(usage), *_by_use(tie, choices), *_by_guess(choices)]
    found += _resume(pipeline, tie, choices, usage, parts, stages)
    found += _shadowed(pipeline, tie, parts, stages)
    return [Remark(tie.key, message, help) for message, help in found]


Text = tuple[str, str]


def _lone(tie: Tie) -> Iterator[Text]:
    if len(tie.layers) == 1:
        yield f"only layer {tie.layers[0]} has this key, so nothing is tied", "give the layer it belongs to the same key"


def _empty(tie: Tie, entry: SpecTie) -> Iterator[Text]:
    if len(tie.layers) > 1 and not entry.parameters:
        yield "no parameter can be listed, so nothing is tied by this key", "the reasons stand beside the parameters"


def _unknown(usage: Usage) -> Iterator[Text]:
    if usage.used is None:
        yield (
            f"which parameters get a gradient is unknown, so the list names all of them and may hang: {usage.unknown}",
            "define example_inputs() beside the layers, or pass an --input that fits",
        )


def _by_use(tie: Tie, choices: Sequence[Choice]) -> Iterator[Text]:
    for choice in choices:
        path, used_by = choice.row.first.path, choice.used_by or ()
        if choice.filtered and used_by and len(tie.layers) > 1:
            yield (
                f"{path} gets a gradient at every layer of the key; left out by a filter, its copies drift apart",
                "relax the filter",
            )
        elif choice.reason is not None and not choice.filtered and 1 < len(used_by) < len(tie.layers):
            yield (
                f"{path} gets a gradient at {layers_text(used_by)} but is {choice.reason}: {NO_LIST}",
                PATCH,
            )
        elif choice.reason is not None and choice.reason.startswith("frozen at"):
            yield (
                f"{path} is {choice.reason} and trained elsewhere: {NO_LIST}",
                "freeze it at every layer of the key, or at none",
            )


def _by_guess(choices: Sequence[Choice]) -> Iterator[Text]:
    for choice in choices:
        if choice.row.by == "shape" and choice.reason is None:
            names = ", ".join(f"{p.path} of layer {i}" for i, p in choice.row.parameters.items())
            yield f"{names} were paired by their shape alone", "look whether these are meant to be one weight"


def _resume(
    pipeline: Pipeline, tie: Tie, choices: Sequence[Choice], usage: Usage, parts: tuple[int, ...], stages: int | None
) -> Iterator[Text]:
    listed = {i: [c.row.parameters[i].path for c in choices if c.reason is None] for i in tie.layers}
    lost = lost_on_resume(pipeline, tie, listed, usage, parts)
    for layer in sorted({layer for layer, _ in lost}):
        paths = ", ".join(path for index, path in lost if index == layer)
        where = "when the layers of the key are in different stages" if stages is None else f"with {stages} stages"
        yield (
            f"{paths} of layer {layer} will not come back from a checkpoint {where}: "
            "a layer with forward_fn writes no checkpoint file",
            f"move what only forward_fn uses into a layer of its own, or use the patched module: {PATCH}",
        )


def _shadowed(pipeline: Pipeline, tie: Tie, parts: tuple[int, ...], stages: int | None) -> Iterator[Text]:
    first: dict[int, int] = {}
    count = f"{stages} stage{'' if stages == 1 else 's'}"
    for index in tie.layers:
        owner = first.setdefault(stage_of(index, parts), index)
        if pipeline.layers[owner].typename != pipeline.layers[index].typename:
            yield (
                f"with {count}, layer {index} ({pipeline.layers[index].typename}) is in one stage with layer {owner} "
                f"({pipeline.layers[owner].typename}): stock DeepSpeed runs the class of layer {owner} at both",
                f"choose a cut that parts them, or use the patched module: {PATCH}",
            )
