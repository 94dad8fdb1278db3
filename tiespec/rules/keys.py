"""Does every key mean one tie?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from packaging.version import Version

from tiespec.pipeline import Layer, Parameter, Tie
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    Context,
    Cut,
    broadcast_in_order,
    counts_said,
    is_ordered,
    layers_said,
    list_said,
    listed_paths,
    positions,
    shards,
    stand_ins,
)
from tiespec.rules.reductions import effect_of_missing
from tiespec.verdict import Consequence

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


def _owners(context: Context, tie: Tie, cut: Cut) -> list[Layer]:
    return [context.pipeline.layers[s.owner] for s in shards(tie, cut)]


def _comparable(context: Context, tie: Tie, cut: Cut) -> tuple[Layer, Layer] | None:
    """The first two copies whose lists differ in names or length; None when they agree."""
    first, *others = _owners(context, tie, cut)
    for other in others:
        if first.unbuilt or other.unbuilt or not broadcast_in_order(first) or not broadcast_in_order(other):
            continue
        if _disagree(first, other):
            return first, other
    return None


def _disagree(a: Layer, b: Layer) -> bool:
    """Different lengths; or other names where the layout is the same; or the same names at other positions."""
    if len(a.listed) != len(b.listed):
        return True
    first, second = positions(a), positions(b)
    if _layout(a) == _layout(b):
        return first != second
    texts = [n.text for n in b.listed]
    return any(n.text in texts and texts.index(n.text) != i for i, n in enumerate(a.listed))


def _layout(layer: Layer) -> list[tuple[str, object]]:
    return [(p.path, p.shape) for p in layer.parameters if not p.is_buffer]


def _differing(a: Layer, b: Layer) -> list[str]:
    first, second = [p or "?" for p in positions(a)], [p or "?" for p in positions(b)]
    alone = [p for p in dict.fromkeys([*first, *second]) if (p in first) != (p in second)]
    if alone:
        return alone
    return [p for p, q in zip(first, second, strict=False) if p != q]


def _of_other_lists(a: Layer, b: Layer) -> Consequence:
    """What two different lists lead to: DeepSpeed pairs them by position.

    gloo's broadcast refuses a tensor that is larger than the one it is received into, and takes a smaller one; its all-reduce
    refuses both (seen with torch 2.13).
    """
    pairs = [(p, q) for p, q in zip(positions(a), positions(b), strict=False) if p and q]
    sizes = [(a.parameter(p).numel, b.parameter(q).numel) for p, q in pairs]
    if any(sent > received for sent, received in sizes):
        return "crash"
    if len(a.listed) != len(b.listed):
        return "hang"
    reduced = is_ordered(a) and is_ordered(b)
    return "crash" if reduced and any(sent != received for sent, received in sizes) else "diverge"


MIXED: dict[Consequence, str] = {
    "diverge": "the gradients of different parameters are summed with each other",
    "crash": "tensors of different sizes meet in a collective",
    "hang": "a rank waits for a collective that the other never starts",
}


@rule("TIE203", "mismatched-paths", "error", "hang")
def mismatched_paths(context: Context) -> Findings:
    """The layers of a key list different names, or the same names in another order.

    DeepSpeed pairs the names by position alone. Lists of different length make one rank wait for a collective that the
    other never starts: a hang while the pipeline is built. The same names in another order mix two parameters where the
    shapes are equal, without a word; where they are not, tensors of different sizes meet in a collective, and a rank is
    aborted (seen on 0.19.8 with gloo). Where the classes under a key differ, different names at the
    same position are the normal way to write it, and no fault.

    Fails:

        TiedLayerSpec("a", Attention, tied_weight_attr=["query.weight", "key.weight"])
        TiedLayerSpec("a", Attention, tied_weight_attr=["key.weight", "query.weight"])

    Right: one list, written once.

        TIED = ["query.weight", "key.weight"]
    """
    for tie in context.ties:
        cuts = [(cut, pair) for cut in context.spread(tie) if (pair := _comparable(context, tie, cut))]
        if not cuts:
            continue
        counts, (a, b) = tuple(cut.stages for cut, _ in cuts), cuts[0][1]
        consequence = _of_other_lists(a, b)
        for path in _differing(a, b):
            yield Found(
                f'key "{tie.key}": the lists of {layers_said([a.index, b.index])} differ at "{path}"; DeepSpeed pairs names by '
                f"position, so with {counts_said(counts)} {MIXED[consequence]}",
                f"give both the same list: {list_said([n.text for n in max((a, b), key=lambda y: len(y.listed)).listed])}",
                key=tie.key,
                layer=b.index,
                path=path,
                places=tuple(Place(y.index, list_said([n.text for n in y.listed]), path) for y in (a, b)),
                stages=counts,
                consequence=consequence,
            )


@rule("TIE204", "mismatched-parameters", "error", "crash")
def mismatched_parameters(context: Context) -> Findings:
    """A tied parameter has another shape, dtype or `requires_grad` at another layer of the key.

    The first broadcast mixes or refuses tensors of different size or type. A parameter that is frozen at one layer only has
    no gradient there, so the other rank waits for it in the reduction: a hang (seen on 0.19.8 in fp32), or, where another name
    follows in the list, what TIE401 says of that.

    Fails:

        TiedLayerSpec("embed", Embedding, 50304, 1024), ..., TiedLayerSpec("embed", Embedding, 50257, 1024)

    Right:

        TiedLayerSpec("embed", Embedding, 50304, 1024), ..., TiedLayerSpec("embed", Embedding, 50304, 1024)
    """
    for tie in context.ties:
        found: dict[tuple[str, int], tuple[list[int], str, Consequence]] = {}
        for cut in context.spread(tie):
            owners = [y for y in _owners(context, tie, cut) if y.unbuilt is None]
            for first, other in ((owners[0], other) for other in owners[1:]):
                if _disagree(first, other):
                    continue
                for p, q in zip(positions(first), positions(other), strict=False):
                    difference = _difference(first, p, other, q)
                    if difference is not None and p is not None and _strikes(difference[1], first, other):
                        found.setdefault((p, other.index), ([], *difference))[0].append(cut.stages)
        for (path, index), (counts, text, consequence) in found.items():
            then = "the first broadcast of the tie " + ("fails" if consequence == "crash" else "fills it in part")
            if consequence == "hang":  # that is of one frozen layer: what its rank does not reduce, the other does
                consequence, then = effect_of_missing(context, tie, tuple(counts))
            yield Found(
                f'key "{tie.key}": "{path}" {text}; with {counts_said(counts)} {then}',
                "make them equal at every layer of the key",
                key=tie.key,
                layer=index,
                path=path,
                stages=tuple(counts),
                consequence=consequence,
            )


def _strikes(consequence: Consequence, first: Layer, other: Layer) -> bool:
    """A rank can only wait in the reduction where both read their lists again in each step."""
    return consequence != "hang" or (is_ordered(first) and is_ordered(other))


def _difference(a: Layer, p: str | None, b: Layer, q: str | None) -> tuple[str, Consequence] | None:
    if p is None or q is None:
        return None
    one, two = a.parameter(p), b.parameter(q)
    if one.shape != two.shape:
        what = f"has the shape {_size(one.shape)} at layer {a.index} and {_size(two.shape)} at layer {b.index}"
        return what, _of_other_shapes(one, two)
    if one.dtype != two.dtype:
        return f"is {one.dtype} at layer {a.index} and {two.dtype} at layer {b.index}", "crash"
    if one.requires_grad != two.requires_grad:
        frozen, trained = (a, b) if two.requires_grad else (b, a)
        return f"is frozen at layer {frozen.index} and trained at layer {trained.index}", "hang"
    return None


def _of_other_shapes(sent: Parameter, received: Parameter) -> Consequence:
    """gloo's broadcast takes a smaller tensor (see ``_of_other_lists``); then the reduction meets it, unless one is frozen."""
    if sent.numel >= received.numel or (sent.requires_grad and received.requires_grad):
        return "crash"
    return "hang" if sent.requires_grad or received.requires_grad else "wrong-forward"


def _size(shape: tuple[int, ...] | None) -> str:
    return "unknown" if shape is None else "x".join(str(s) for s in shape) or "scalar"


@rule("TIE205", "unstable-key-order", "error", "hang")
def unstable_key_order(context: Context) -> Findings:
    """Two or more keys, and a DeepSpeed that visits them in no fixed order.

    Releases before 0.16.6 walk over a set of the keys, whose order differs from process to process (PYTHONHASHSEED). Ranks
    that share two keys reduce them in different orders: a hang, or a mix of parameters of equal size. PR #7208 sorts them.

    Fails:

        TiedLayerSpec("embed", ...), TiedLayerSpec("norm", ...), ..., TiedLayerSpec("norm", ...), TiedLayerSpec("embed", ...)

    Right: DeepSpeed 0.16.6 or newer, or one key whose module holds both; until then, set PYTHONHASHSEED to one value on every
    rank.
    """
    if context.settings.deepspeed >= SORTED_SINCE:
        return
    for cut in context.cuts:
        held: dict[int, list[Tie]] = {}
        for tie in context.ties:
            for shard in shards(tie, cut) if len(shards(tie, cut)) > 1 else ():
                held.setdefault(shard.stage, []).append(tie)
        several = next((ties for ties in held.values() if len(ties) > 1), None)
        if several is not None:
            keys = " and ".join(f'"{t.key}"' for t in several)
            yield Found(
                f"the keys {keys} are in the same stages, and DeepSpeed {context.settings.deepspeed} visits keys in another order on "
                f"every rank: with {cut.stages} stages the ranks wait for each other",
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
