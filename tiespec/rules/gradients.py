"""Does every rank of a tie take part in every reduction?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.pipeline import Layer, Tie
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    INPUT_HELP,
    Context,
    Shard,
    counts_said,
    layers_said,
    list_said,
    listed_paths,
    positions,
)
from tiespec.rules.reductions import SKIPS_NONE_SINCE, aligned, effect_of_missing

Findings = Iterator[Found | Undecided]


def _trainable(context: Context, row: list[tuple[Shard, str]]) -> list[bool]:
    return [context.pipeline.layers[s.owner].parameter(path).requires_grad for s, path in row]


@rule("TIE401", "unused-path", "error", "hang")
def unused_path(context: Context) -> Findings:
    """A listed parameter gets no gradient at some layer of the key, while it does at another.

    The reduction of a tie skips a parameter whose gradient is None on the rank where it is None (since 0.15.4). The other
    rank has a gradient and waits in `all_reduce` until the timeout: a hang after the first batch, with all GPUs allocated.
    Where another name follows in the list, the waiting gradient meets that one's: if their sizes differ a rank is aborted (seen
    on 0.19.8 with gloo), if they are equal the two are mixed.
    Older releases raise on the rank without a gradient; so does bf16 where DeepSpeed's BF16_Optimizer runs (`_hp_grad`).
    The list "every parameter of the module" does this as soon as one of them is used at one end only.

    Fails:

        names = ["word.weight", "pos.weight"]
        TiedLayerSpec("embed", Embedding, tied_weight_attr=names), ...,
        TiedLayerSpec("embed", Embedding, forward_fn=logits, tied_weight_attr=names)        # logits uses word.weight alone

    Right:

        names = ["word.weight"]

    Whether a parameter is used is found by running forward and backward over the layers, on the meta device.
    """
    if context.usage.used is None and any(context.spread(tie) and _listed(context, tie) for tie in context.ties):
        yield Undecided(f"which listed parameters get a gradient is unknown: {context.usage.unknown}", INPUT_HELP)
        return
    for tie in context.ties:
        found: dict[tuple[str, ...], list[int]] = {}
        for cut in context.spread(tie):
            for row in aligned(context, tie, cut):
                used = [bool(context.gets_gradient(s, path)) for s, path in row]
                if any(used) and not all(used) and len(set(_trainable(context, row))) == 1:
                    found.setdefault(tuple(path for _, path in row), []).append(cut.stages)
        for paths, counts in found.items():
            yield _unused(context, tie, paths[0], tuple(counts))


def _listed(context: Context, tie: Tie) -> bool:
    return any(listed_paths(y) for y in context.layers(tie))


def _unused(context: Context, tie: Tie, path: str, counts: tuple[int, ...]) -> Found:
    layers = context.layers(tie)
    paths = {y.index: _at(layers[0], y, path) for y in layers}
    without = [i for i, p in paths.items() if not context.usage.gets_gradient(i, p)]
    consequence, then = effect_of_missing(context, tie, counts)
    kept = [
        n.text
        for n in layers[0].listed
        if n.path and all(context.usage.gets_gradient(y.index, _at(layers[0], y, n.path)) for y in layers)
    ]
    few = len(paths) - len(without) > 1
    return Found(
        f'"{path}" in tied_weight_attr of key "{tie.key}" gets no gradient at {layers_said(without)}, and does at '
        f"{layers_said([i for i in paths if i not in without])}: with {counts_said(counts)} {then}",
        "no list is right, for it is trained at two layers or more: split the module, or use the patched module (tiespec patch)"
        if few
        else f"leave it out: {list_said(kept)}"
        if kept
        else "leave it out; then nothing of this key is trained at every layer, and LayerSpecs do",
        key=tie.key,
        layer=without[0],
        path=path,
        places=tuple(Place(i, "no gradient" if i in without else "gets a gradient", p) for i, p in paths.items()),
        stages=counts,
        consequence=consequence,
    )


def _at(first: Layer, other: Layer, path: str) -> str:
    """The path at another layer of the name that stands for ``path`` at the first."""
    names = positions(first)
    return (positions(other)[names.index(path)] if path in names else None) or path


@rule("TIE402", "frozen-path", "error", "crash")
def frozen_path(context: Context) -> Findings:
    """A listed parameter is frozen at every layer of the key.

    In fp32 nothing happens: no rank has a gradient, and the values were made equal at construction. Where DeepSpeed's
    BF16_Optimizer runs (bf16 without ZeRO; bf16 with ZeRO-1 and `data_types.grad_accum_dtype: fp32`), the reduction reads
    `_hp_grad` of a parameter that no optimizer has: an AttributeError in the first step. Releases before 0.15.4 pass None to
    all_reduce, which raises. Decided by `--ds-config` and `--deepspeed`.

    Fails, in bf16:

        self.word.weight.requires_grad_(False)
        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"])

    Right: leave it out of the list, and load its values from the same file on every stage.
    """
    old = context.settings.deepspeed < SKIPS_NONE_SINCE
    if not old and not context.settings.config.uses_bf16_optimizer:
        return
    why = (
        f"DeepSpeed {context.settings.deepspeed} passes None to all_reduce"
        if old
        else "DeepSpeed's BF16_Optimizer has no _hp_grad for it"
    )
    for tie in context.ties:
        found: dict[str, list[int]] = {}
        for cut in context.spread(tie):
            for row in aligned(context, tie, cut):
                if not any(_trainable(context, row)):
                    found.setdefault(row[0][1], []).append(cut.stages)
        for path, counts in found.items():
            yield Found(
                f'"{path}" in tied_weight_attr of key "{tie.key}" is frozen at {layers_said(tie.layers)}: with {counts_said(counts)} '
                f"the first step raises, because {why}",
                "leave it out of the list, and give every stage the same values",
                key=tie.key,
                layer=tie.layers[0],
                path=path,
                places=tuple(Place(i, "frozen", path) for i in tie.layers),
                stages=tuple(counts),
            )


@rule("TIE403", "hidden-gradient", "error", "diverge")
def hidden_gradient(context: Context) -> Findings:
    """ZeRO-1 with bf16, optimizer offload and fp32 gradient accumulation: the reduction looks where no gradient is.

    The tie reduction reads `weight.grad`. In this combination the gradients of the parameters are kept elsewhere, in fp32 on
    the host, and `weight.grad` is None on every rank: nothing is reduced, and the copies drift apart (seen on 0.19.8).

    Fails:

        {"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
         "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}

    Right: without `offload_optimizer`, or without `data_types.grad_accum_dtype`.
    """
    if not context.settings.config.hides_gradients:
        return
    for tie in context.ties:
        counts = tuple(c.stages for c in context.spread(tie))
        first = context.layers(tie)[:1]
        paths = [
            p
            for y in first
            for p in listed_paths(y)
            if y.parameter(p).requires_grad and context.usage.gets_gradient(y.index, p) is not False
        ]
        if counts and paths:
            yield Found(
                f'key "{tie.key}": with bf16, ZeRO-1, optimizer offload and fp32 gradient accumulation, the gradients of its tied '
                f"parameters are not reduced; with {counts_said(counts)} the copies drift apart",
                "drop offload_optimizer, or data_types.grad_accum_dtype, from the DeepSpeed config",
                key=tie.key,
                layer=tie.layers[0],
                path=paths[0],
                stages=counts,
            )
