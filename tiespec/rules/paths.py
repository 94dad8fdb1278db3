"""Does every name in ``tied_weight_attr`` mean one trainable Parameter, on every class of the key?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from tiespec.pipeline import Layer, ListedName, Tie
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    INPUT_HELP,
    UNORDERED,
    Context,
    broadcast_in_order,
    counts_said,
    is_ordered,
    layers_said,
    list_said,
    nearest_names,
    shards,
)
from tiespec.verdict import Consequence

Findings = Iterator[Found | Undecided]

DOTTED_SINCE = Version("0.16.6")


def _by_name(layers: list[Layer], wanted: set[str]) -> dict[tuple[str, str], list[tuple[Layer, ListedName]]]:
    """(key, name) -> the layers on which it is of one of the wanted kinds."""
    found: dict[tuple[str, str], list[tuple[Layer, ListedName]]] = {}
    for layer in layers:
        for listed in layer.listed:
            if layer.key is not None and listed.kind in wanted:
                found.setdefault((layer.key, listed.text), []).append((layer, listed))
    return found


def _tied_layers(context: Context) -> list[Layer]:
    """Those whose names are all read when the pipeline is built, in whichever order."""
    return [
        layer for tie in context.ties for layer in context.layers(tie)
        if broadcast_in_order(layer) or layer.listed_as in UNORDERED
    ]  # fmt: skip


@rule("TIE101", "unresolved-path", "error", "crash")
def unresolved_path(context: Context) -> Findings:
    """A name in `tied_weight_attr` does not resolve on the layer.

    DeepSpeed reads every name with `getattr` while it builds the pipeline, as soon as there is more than one stage, also
    for a key whose layers are all in one stage. A name that is not there is an `AttributeError` on every rank that holds
    the key.

    Fails:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word_embedings.weight"])

    Right:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word_embeddings.weight"])

    Write the name as `named_parameters()` of the layer shows it, or the name of a property that returns the Parameter.
    The default of `tied_weight_attr` is `"weight"`: a layer whose weight lies deeper needs a list.
    """
    counts = context.parallel()
    for (key, text), held in _by_name(_tied_layers(context), {"missing"}).items():
        if not counts:
            return
        first = held[0][0]
        near = nearest_names(first, text)
        where = layers_said([layer.index for layer, _ in held])
        yield Found(
            f'"{text}" in tied_weight_attr of key "{key}" does not resolve on {first.typename} ({where}): '
            f"AttributeError while the pipeline is built, with {counts_said(counts)}",
            f"did you mean {' or '.join(f'{chr(34)}{name}{chr(34)}' for name in near)}?" if near else _has(first),
            key=key,
            layer=first.index,
            path=text,
            places=tuple(Place(layer.index, f"{layer.typename} has no {text}", text) for layer, _ in held),
            stages=counts,
        )


def _has(layer: Layer) -> str:
    paths = [p.path for p in layer.parameters if not p.is_buffer]
    return f"{layer.typename} has {', '.join(paths[:6]) or 'no parameters'}{' ...' if len(paths) > 6 else ''}"


_WHAT = {
    "module": "a module",
    "none": "None",
    "other": "not a tensor",
    "tensor": "a tensor, not a Parameter",
    "parameter": "a Parameter that is made anew at each read",
}


@rule("TIE102", "not-a-parameter", "error", "crash")
def not_a_parameter(context: Context) -> Findings:
    """A name in `tied_weight_attr` resolves, but not to a Parameter that is the same object at each read.

    A module, a method or None makes the first broadcast raise. A tensor that is computed at each read (a property that
    returns `self.weight.t()`) is broadcast and reduced, and then thrown away: training goes on and the copies differ; where
    DeepSpeed's BF16_Optimizer runs, the first step raises. So it is with a buffer that a forward pass changes: it gets no gradient.
    A property, or a second registration, that returns a real Parameter is fine.

    Fails:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word"])        # an nn.Embedding

    Right:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"])
    """
    counts = context.parallel()
    held = _by_name(_tied_layers(context), {"module", "none", "other", "tensor", "parameter"})
    for (key, text), places in held.items():
        wrong = [(y, n) for y, n in places if n.kind != "parameter" or not n.stable]
        if not counts or not wrong:
            continue
        layer, listed = wrong[0]
        if all(n.kind == "tensor" and n.path is not None for _, n in wrong) and not context.settings.config.uses_bf16_optimizer:
            if context.usage.used is None:
                what = f'"{text}" of key "{key}" is a buffer; whether a forward pass changes it is unknown: {context.usage.unknown}'
                yield Undecided(what, INPUT_HELP)
                continue
            if not any((y.index, n.path) in context.usage.changed for y, n in wrong):
                continue  # the first broadcast makes it equal, and nothing changes it afterwards
        what = "a buffer" if listed.kind == "tensor" and listed.path else _WHAT[listed.kind]
        is_tensor = listed.kind in ("tensor", "parameter")
        consequence, then = _then(is_tensor, context.settings.config.uses_bf16_optimizer, _trains_together(context, key))
        yield Found(
            f'"{text}" in tied_weight_attr of key "{key}" is {what} of {layer.typename} '
            f"({layers_said([y.index for y, _ in wrong])}): with {counts_said(counts)} {then}",
            _instead(layer, listed),
            key=key,
            layer=layer.index,
            path=text,
            places=tuple(Place(y.index, f"{text} is {what}", text) for y, _ in wrong),
            stages=counts,
            consequence=consequence,
        )


def _trains_together(context: Context, key: str) -> bool:
    """Whether a parameter that no name means gets a gradient at two layers of the key or more; True where that is unknown."""
    tie, used = next(tie for tie in context.ties if tie.key == key), context.usage.used
    if used is None:
        return True
    meant = {(y.index, n.path) for y in context.layers(tie) for n in y.listed}
    places = [[(i, p.path) for i, p in row.parameters.items()] for row in context.rows(tie)]
    return any(sum(path in used[i] for i, path in row) > 1 for row in places if not meant & {*row})


def _then(is_tensor: bool, bf16_optimizer: bool, trained: bool) -> tuple[Consequence, str]:
    if not is_tensor:
        return "crash", "the first broadcast raises"
    if bf16_optimizer:
        return "crash", "the first step raises: DeepSpeed's BF16_Optimizer has no gradient for it (_hp_grad)"
    if not trained:
        return "wrong-forward", "the Parameter behind it is never broadcast: its copies differ from the start"
    return "diverge", "the Parameter behind it is never reduced, and its copies drift apart"


def _instead(layer: Layer, listed: ListedName) -> str:
    inside = [p.path for p in layer.parameters if not p.is_buffer and p.path.startswith(f"{listed.text}.")]
    if listed.kind == "module" and inside:
        return f"name its parameters: {list_said(inside)}"
    near = nearest_names(layer, listed.text)
    return f"name a Parameter: {list_said(near[:1])}" if near else f"name a Parameter; {_has(layer)}"


@rule("TIE103", "nested-path-unsupported", "error", "crash")
def nested_path_unsupported(context: Context) -> Findings:
    """A dotted name, and a DeepSpeed that does not resolve dots.

    Releases before 0.16.6 read a name with one `getattr`, so that `"linear.weight"` is an `AttributeError` on every rank
    (seen on 0.14.5 and 0.16.5). PR #7208 brought dotted names.

    Fails:

        TiedLayerSpec("head", Head, tied_weight_attr=["linear.weight"])     # DeepSpeed 0.16.5

    Right:

        class Head(nn.Module):
            @property
            def weight(self):
                return self.linear.weight

        TiedLayerSpec("head", Head, tied_weight_attr=["weight"])

    Update DeepSpeed to 0.16.6, or name a property without a dot.
    """
    counts = context.parallel()
    if context.settings.deepspeed >= DOTTED_SINCE or not counts:
        return
    for (key, text), held in _by_name(_tied_layers(context), {"parameter"}).items():
        if "." in text:
            layer = held[0][0]
            yield Found(
                f'"{text}" in tied_weight_attr of key "{key}" has a dot, and DeepSpeed {context.settings.deepspeed} reads it as '
                f"one attribute: AttributeError while the pipeline is built, with {counts_said(counts)}",
                f"use DeepSpeed {DOTTED_SINCE} or newer, or name a property of {layer.typename} that returns the Parameter",
                key=key,
                layer=layer.index,
                path=text,
                stages=counts,
            )


def _is_trained(context: Context, tie: Tie, layer: Layer, path: str) -> bool:
    """Whether a parameter has a gradient that is reduced; True where that is unknown."""
    used = context.usage.used
    return layer.parameter(path).requires_grad and (used is None or any(path in used[i] for i in tie.layers))


@rule("TIE104", "repeated-parameter", "error", "wrong-gradient")
def repeated_parameter(context: Context) -> Findings:
    """Two names in `tied_weight_attr` mean one Parameter.

    DeepSpeed reduces name by name, so the gradient is summed twice. The copies stay equal and nothing is printed. Adam hides
    the doubled gradient; with SGD, clipping or weight decay training is not what one process would do (seen on 0.19.8).

    Fails:

        self.table = self.word                                              # second registration
        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight", "table.weight"])

    Right:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"])
    """
    for tie in context.ties:
        spread = context.spread(tie)
        for layer in context.layers(tie) if spread else ():
            owns = tuple(c.stages for c in spread if layer.index in {s.owner for s in shards(tie, c)})
            paths = [n.path for n in layer.listed if n.kind == "parameter" and n.stable and n.path]
            repeated = sorted({p for p in paths if paths.count(p) > 1 and _is_trained(context, tie, layer, p)})
            if not repeated or not owns or not is_ordered(layer):
                continue
            for path in repeated:
                texts = [n.text for n in layer.listed if n.path == path]
                said = " and ".join(f'"{text}"' for text in texts)
                yield Found(
                    f'{said} in tied_weight_attr of key "{tie.key}" are one Parameter ({layers_said([layer.index])}): '
                    f"with {counts_said(owns)} its gradient is summed {len(texts)} times",
                    f'keep one of them: "{path if path in texts else texts[0]}"',
                    key=tie.key,
                    layer=layer.index,
                    path=path,
                    stages=owns,
                )
            break
