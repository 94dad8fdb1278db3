"""Do the layers of a key list and hold the same?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.dsconfig import DsConfig
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
    positions,
    shards,
)
from tiespec.rules.reductions import effect_of_missing
from tiespec.verdict import Consequence

Findings = Iterator[Found | Undecided]


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

    The first broadcast mixes or refuses tensors of different size or type; where the config's precision makes them one type
    afterwards, nothing is said, and the copies differ from the start (seen on 0.19.8 in bf16). A parameter that is frozen at one layer only has
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
                    difference = _difference(first, p, other, q, context.settings.config)
                    if difference is not None and p is not None and _strikes(difference[1], first, other):
                        found.setdefault((p, other.index), ([], *difference))[0].append(cut.stages)
        for (path, index), (counts, text, consequence) in found.items():
            then = "tensors of other sizes or types meet in a collective"
            if consequence != "crash":
                then = "the first broadcast fills it with other values than were sent"
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


def _difference(a: Layer, p: str | None, b: Layer, q: str | None, config: DsConfig) -> tuple[str, Consequence] | None:
    if p is None or q is None:
        return None
    one, two = a.parameter(p), b.parameter(q)
    if one.shape != two.shape:
        what = f"has the shape {_size(one.shape)} at layer {a.index} and {_size(two.shape)} at layer {b.index}"
        return what, _of_other_shapes(one, two)
    if one.dtype != two.dtype:
        return f"is {one.dtype} at layer {a.index} and {two.dtype} at layer {b.index}", _of_other_types(one, two, config)
    if one.requires_grad != two.requires_grad:
        frozen, trained = (a, b) if two.requires_grad else (b, a)
        return f"is frozen at layer {frozen.index} and trained at layer {trained.index}", "hang"
    return None


def _of_other_shapes(sent: Parameter, received: Parameter) -> Consequence:
    """gloo's broadcast takes a smaller tensor (see ``_of_other_lists``); then the reduction meets it, unless one is frozen.

    With equal sizes both go on, and the values are in other places.
    """
    trained = sent.requires_grad and received.requires_grad
    if sent.numel > received.numel or (trained and sent.numel != received.numel):
        return "crash"
    if trained:
        return "diverge"
    return "hang" if sent.requires_grad or received.requires_grad else "wrong-forward"


def _of_other_types(sent: Parameter, received: Parameter, config: DsConfig) -> Consequence:
    """gloo's broadcast takes the bytes of a smaller type; a config of lower precision makes both one type before they are reduced."""
    trained = sent.requires_grad or received.requires_grad
    if sent.nbytes > received.nbytes or (trained and config.precision == "fp32" and sent.nbytes != received.nbytes):
        return "crash"
    return "diverge" if trained else "wrong-forward"


def _size(shape: tuple[int, ...] | None) -> str:
    return "unknown" if shape is None else "x".join(str(s) for s in shape) or "scalar"
