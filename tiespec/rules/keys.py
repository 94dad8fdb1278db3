"""Does every key mean one tie?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from packaging.version import Version

from tiespec.pipeline import Layer, Tie
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    Context,
    Cut,
    counts_said,
    layers_said,
    listed_paths,
    shards,
    stand_ins,
)

Findings = Iterator[Found | Undecided]

SORTED_SINCE = Version("0.16.6")


@rule("TIE201", "invalid-key", "error", "crash")
def invalid_key(context: Context) -> Findings:
    """A key that cannot name a module.

    DeepSpeed keeps the tied modules in an `nn.ModuleDict`, which refuses a key that is not a string, is empty, has a dot or
    is a name that a ModuleDict has itself (`keys`, `items`, `pop`, `type`, `training`, ...): a KeyError or TypeError on every
    rank that builds the layer. torch is asked; the message quotes it.

    Fails:

        TiedLayerSpec("model.embed_tokens", Embedding)

    Right:

        TiedLayerSpec("embed_tokens", Embedding)
    """
    for tie in context.ties:
        layer = context.pipeline.layers[tie.layers[0]]
        if layer.key_error is not None:
            yield Found(
                f'the key "{tie.key}" of {layers_said(tie.layers)} is refused when a stage is built: {layer.key_error}',
                f'give it another name, such as "{valid_key(tie.key)}"',
                key=tie.key,
                layer=layer.index,
            )


def valid_key(key: str) -> str:
    """A key that is near to one that is refused."""
    word = "".join(c if c.isalnum() else "_" for c in key).strip("_")
    return f"tied_{word}" if not word or word in ("keys", "items", "values", "pop", "type") or word == key else word


@rule("TIE202", "lone-key", "warning", "diverge")
def lone_key(context: Context) -> Findings:
    """A key that one layer has alone: nothing is tied.

    Mostly a misspelled key. The pipeline trains, and the weights that were meant to be one are two. Frozen ones differ from the
    start.

    Fails:

        TiedLayerSpec("embed", Embedding), ..., TiedLayerSpec("embbed", Embedding, forward_fn=logits)

    Right:

        TiedLayerSpec("embed", Embedding), ..., TiedLayerSpec("embed", Embedding, forward_fn=logits)
    """
    lone = [tie for tie in context.ties if len(tie.layers) == 1]
    explained: set[str] = set()
    for tie in sorted(lone, key=lambda t: -t.layers[0]):  # the later of two near keys is shown; it names the other
        if tie.key in explained:
            continue
        near = difflib.get_close_matches(tie.key, [t.key for t in context.ties if t.key != tie.key], n=1)
        explained |= set(near)
        layer = context.pipeline.layers[tie.layers[0]]
        paths = listed_paths(layer) if layer.unbuilt is None else ()
        meant_with = [y for other in context.ties if other.key in near for y in context.layers(other)]
        yield Found(
            f'only {layers_said(tie.layers)} has the key "{tie.key}": nothing is tied to it',
            f'did you mean "{near[0]}"?' if near else "give the layer it belongs to the same key, or write a LayerSpec",
            key=tie.key,
            layer=layer.index,
            path=paths[0] if paths else None,
            places=tuple(Place(layer.index, f"{p} is tied to nothing", p) for p in paths),
            consequence="wrong-forward" if _are_frozen([layer, *meant_with]) else None,
        )


def _are_frozen(layers: Sequence[Layer]) -> bool:
    """Whether nothing that the lists of these layers name is trained."""
    listed = [y.parameter(path) for y in layers if y.unbuilt is None for path in listed_paths(y)]
    return bool(listed) and not any(parameter.requires_grad for parameter in listed)


def _meeting(context: Context, cut: Cut) -> list[Tie]:
    """The keys whose order counts: a group is made for each by all ranks, and used where a key is in several stages."""
    spread = any(len(shards(tie, cut)) > 1 for tie in context.ties)  # a group of one rank waits for nobody
    return list(context.ties) if spread and len(context.ties) > 1 else []


@rule("TIE205", "unstable-key-order", "error", "hang")
def unstable_key_order(context: Context) -> Findings:
    """Two or more keys, and a DeepSpeed that visits them in no fixed order.

    Releases before 0.16.6 walk over a set of the keys, whose order differs from process to process (PYTHONHASHSEED). All ranks
    make a process group for each key, in that order, also for keys of other stages; and reduce in it. Which parameters meet is a matter of chance: a hang, an abort of a rank
    where their sizes differ, or a mix of parameters of equal size. PR #7208 sorts them.

    Fails:

        TiedLayerSpec("embed", ...), TiedLayerSpec("norm", ...), ..., TiedLayerSpec("norm", ...), TiedLayerSpec("embed", ...)

    Right: DeepSpeed 0.16.6 or newer, or one key whose module holds both; until then, set PYTHONHASHSEED to one value on every
    rank.
    """
    if context.settings.deepspeed >= SORTED_SINCE:
        return
    for cut in context.cuts:
        several = _meeting(context, cut) if cut.stages > 1 else []
        if several:
            keys = " and ".join(f'"{t.key}"' for t in several)
            yield Found(
                f"there are the keys {keys}, and DeepSpeed {context.settings.deepspeed} visits keys in another order on every rank: "
                f"with {counts_said((cut.stages,))} the ranks wait for each other",
                f"use DeepSpeed {SORTED_SINCE} or newer, or set PYTHONHASHSEED=0 on every rank",
                key=several[0].key,
                layer=several[0].layers[0],
                stages=(cut.stages,),
            )
            return


@rule("TIE206", "shadowed-layer", "error", "wrong-forward")
def shadowed_layer(context: Context) -> Findings:
    """Two layers of a key land in one stage and differ: the first one runs in both places.

    DeepSpeed builds one module for each key of a stage, from the first spec that has the key. Class, constructor arguments
    and list of the later ones are dropped; only their `forward_fn` counts. With one stage nothing is communicated and
    nothing is said: the model is another one than was written (seen on 0.19.8). Where the first one does not run on what the
    second one gets, it raises.

    Fails, with one stage:

        TiedLayerSpec("embed", Embedding), ..., TiedLayerSpec("embed", Head)

    Right: one class, and a `forward_fn` for what differs.

        TiedLayerSpec("embed", Embedding), ..., TiedLayerSpec("embed", Embedding, forward_fn=logits)

    Or a number of stages that parts the layers.
    """
    by_count = [(cut, stand_ins(context.pipeline, cut)) for cut in context.cuts]
    for tie in context.ties:
        found: dict[tuple[int, int], list[int]] = {}
        for cut, replaced in by_count:
            for index in (i for i in tie.layers if i in replaced):
                found.setdefault((replaced[index], index), []).append(cut.stages)
        for (owner, index), counts in found.items():
            yield _shadowed(context, tie, context.pipeline.layers[owner], context.pipeline.layers[index], tuple(counts))


def _shadowed(context: Context, tie: Tie, owner: Layer, other: Layer, counts: tuple[int, ...]) -> Found | Undecided:
    if owner.typename != other.typename:
        what = f"{owner.typename} runs at layer {other.index} too, in place of {other.typename}"
    elif owner.recipe != other.recipe:
        what = f"the constructor arguments of layer {owner.index} are used at layer {other.index} too"
    else:
        what = f"the list of layer {owner.index} is used, that of layer {other.index} is dropped"
    message = f'key "{tie.key}": with {counts_said(counts)}, layers {owner.index} and {other.index} are in one stage and {what}'
    if not context.settings.stages_given:
        return Undecided(message, "pass --stages to say how many stages there will be")
    paths = listed_paths(owner)
    raised = next((context.shadows_raise[count] for count in counts if count in context.shadows_raise), None)
    return Found(
        message if raised is None else f"{message}; that raises {raised}",
        "use one class with a forward_fn for what differs, or a number of stages that parts the layers",
        key=tie.key,
        layer=other.index,
        path=paths[0] if paths else None,
        places=(Place(owner.index, f"{owner.typename}: built"), Place(other.index, f"{other.typename}: dropped")),
        stages=counts,
        consequence=None if raised is None else "crash",
    )
