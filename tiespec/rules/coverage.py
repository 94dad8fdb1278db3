"""Is everything tied that must be?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.pairing import Row
from tiespec.pipeline import Layer, Parameter, Tie
from tiespec.resume import lost_on_resume
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    INPUT_HELP,
    Context,
    Cut,
    Shard,
    counts_said,
    is_clear,
    layers_said,
    list_said,
    listed_paths,
    shards,
)
from tiespec.sharing import shared_between_layers
from tiespec.stages import stage_of

Findings = Iterator[Found | Undecided]


def _parted(context: Context, layers: list[int]) -> tuple[int, ...]:
    """The numbers of stages with which the layers are not all in one stage."""
    return tuple(c.stages for c in context.cuts if len({stage_of(i, c.parts) for i in layers}) > 1)


@rule("TIE301", "undeclared-tie", "error", "diverge")
def undeclared_tie(context: Context) -> Findings:
    """Layers of different stages share a Parameter, and no key says so.

    Every process builds, or is given, its own copy of the model, so that an object that two layers share is two objects as
    soon as the layers are in different stages. Nothing broadcasts it and nothing reduces its gradient: the copies drift
    apart without a word (seen on 0.19.8 with plain LayerSpecs over a live GPT-2). Found by the same Parameter object, the
    same storage and overlapping views; equal values alone are no tie.

    Fails:

        head.weight = embedding.weight
        layers = [embedding, *blocks, head]

    Right:

        layers = [TiedLayerSpec("embed", Embedding), *blocks, TiedLayerSpec("embed", Embedding, forward_fn=logits)]
    """
    for group in shared_between_layers(context.pipeline.layers):
        used = [(y, p) for y, p in group if _is_trained(context, y, p)]
        layers = list(dict.fromkeys(y.index for y, _ in used))
        counts = _parted(context, layers)
        if len(layers) < 2 or not counts or _have_one_key([y for y, _ in used]):
            continue
        names = " and ".join(f'"{p.path}" of layer {y.index}' for y, p in used)
        if context.usage.used is None:
            yield Undecided(f"{names} are one Parameter; whether both are used is unknown: {context.usage.unknown}", INPUT_HELP)
            continue
        yield _undeclared(names, used, counts)
    yield from _reached_from_outside(context)


def _is_trained(context: Context, layer: Layer, parameter: Parameter) -> bool:
    """A parameter that gets a gradient, or may; a buffer that the forward pass changes."""
    if parameter.is_buffer:
        return (layer.index, parameter.path) in context.usage.changed
    return parameter.requires_grad and context.usage.gets_gradient(layer.index, parameter.path) is not False


def _have_one_key(layers: list[Layer]) -> bool:
    return layers[0].key is not None and len({layer.key for layer in layers}) == 1


def _undeclared(names: str, used: list[tuple[Layer, Parameter]], counts: tuple[int, ...]) -> Found:
    what = "buffer" if used[0][1].is_buffer else "Parameter"
    one = f"one {what}" if len({p.identity for _, p in used}) == 1 else "the same memory"
    lists = " and ".join(f"{list_said([p.path])} at layer {y.index}" for y, p in used)
    return Found(
        f"{names} are {one} without a common key: with {counts_said(counts)} every stage has its own copy, and the copies drift apart",
        f"make the layers TiedLayerSpecs of one key, with {lists}; or use the patched module (tiespec patch)",
        layer=used[0][0].index,
        path=used[0][1].path,
        places=tuple(Place(y.index, f"{y.typename} holds it as {p.path}", p.path) for y, p in used),
        stages=counts,
    )


def _reached_from_outside(context: Context) -> Findings:
    for stray in context.usage.strays:
        if stray.owner is None or stray.layer is None:
            continue
        (owner, path), layer = stray.owner, stray.layer
        counts = _parted(context, [owner, layer])
        if counts:
            yield Found(
                f'layer {layer} trains "{path}" of layer {owner} through a closure, without a key: with {counts_said(counts)} '
                "it trains a copy of its own that no optimizer owns",
                f"make layer {owner} and layer {layer} TiedLayerSpecs of one key; the second with a forward_fn(module, inputs)",
                layer=layer,
                path=path,
                places=(Place(owner, f"holds {path}", path), Place(layer, f"reaches {path} through a closure", path)),
                stages=counts,
            )


def _listed_somewhere(context: Context, tie: Tie, row: Row) -> bool:
    layers = {y.index: y for y in context.layers(tie)}
    return any(p.path in listed_paths(layers[i]) for i, p in row.parameters.items())


def _unlisted(context: Context, tie: Tie) -> list[Row]:
    """Parameters that no list of the key names, where the classes leave no doubt about what belongs together."""
    layers = context.layers(tie)
    if not is_clear(layers):
        return []
    kin = [y for y in layers if _related(layers[0], y)]
    rows = [row for row in context.rows(tie) if row.by != "shape" and set(row.parameters) <= {y.index for y in kin}]
    return [row for row in rows if not _listed_somewhere(context, tie, row)]


def _related(a: Layer, b: Layer) -> bool:
    return a.typename in b.bases or b.typename in a.bases


def _users(context: Context, tie: Tie, row: Row, cut: Cut) -> list[Shard]:
    """The stages in which a parameter gets a gradient."""
    return [
        s for s in shards(tie, cut)
        if any(i in row.parameters and context.usage.gets_gradient(i, row.parameters[i].path) for i in s.layers)
    ]  # fmt: skip


@rule("TIE302", "untied-parameter", "error", "diverge")
def untied_parameter(context: Context) -> Findings:
    """A parameter of a tied module is trained at two or more of its layers, and the list does not name it.

    Every stage has its own copy of the module; only what is listed is broadcast and reduced. The others start from different
    values, where the seeds differ, and each is trained with the gradient of its own stage (seen on 0.19.8: exit 0, copies
    differ).

    Fails:

        TiedLayerSpec("block", Block, tied_weight_attr=["linear.weight"])   # and the bias is used too

    Right:

        TiedLayerSpec("block", Block, tied_weight_attr=["linear.weight", "linear.bias"])

    `tiespec generate` writes the list. A parameter that is used by some of three layers only cannot be listed either (it
    would hang, TIE401): split the module, or use the patched one.
    """
    for tie in context.ties:
        for row in _unlisted(context, tie) if context.usage.used is not None else ():
            counts = tuple(c.stages for c in context.spread(tie) if len(_users(context, tie, row, c)) > 1)
            if not counts:
                continue
            users = [i for i, p in row.parameters.items() if context.usage.gets_gradient(i, p.path)]
            yield Found(
                f'"{row.first.path}" of key "{tie.key}" is trained at {layers_said(users)} and is not in tied_weight_attr: '
                f"with {counts_said(counts)} its copies drift apart",
                _add(context, tie, row, users),
                key=tie.key,
                layer=users[0],
                path=row.first.path,
                places=tuple(
                    Place(i, "gets a gradient" if i in users else "gets none", p.path) for i, p in row.parameters.items()
                ),
                stages=counts,
            )


def _add(context: Context, tie: Tie, row: Row, users: list[int]) -> str:
    if len(users) < len(tie.layers):
        return "no list is right: split the module so that all of it is used at every layer, or use the patched module (tiespec patch)"
    everywhere = [
        r.first.path
        for r in _unlisted(context, tie)
        if all(i in r.parameters and context.usage.gets_gradient(i, r.parameters[i].path) for i in tie.layers)
    ]
    return f"add it: {list_said([*(n.text for n in context.layers(tie)[0].listed), *everywhere])}"


@rule("TIE303", "lost-on-resume", "error", "lost-on-resume")
def lost_after_resume(context: Context) -> Findings:
    """A trained parameter of a layer with `forward_fn` is in no checkpoint file.

    DeepSpeed writes and reads a file for every layer that has a `state_dict`. A layer with `forward_fn` is a
    `functools.partial`, which has none. Its stage gets the listed parameters by a broadcast from the first stage of the key,
    and nothing else: after a resume the others hold the values of a fresh start. Where the first stage has only layers with
    `forward_fn`, nothing of the key comes back, with one stage too (all seen on 0.19.8). No list cures it.

    Fails:

        TiedLayerSpec("ends", Ends), ..., TiedLayerSpec("ends", Ends, forward_fn=norm_and_logits)   # trains final_norm too

    Right: what only the `forward_fn` uses is a layer of its own.

        TiedLayerSpec("ends", Ends), ..., LayerSpec(nn.LayerNorm, hidden), TiedLayerSpec("ends", Ends, forward_fn=logits)

    Or the patched module, which saves every parameter.
    """
    for tie in context.ties:
        explained = {
            row.first.path
            for row in _unlisted(context, tie)
            if any(len(_users(context, tie, row, c)) > 1 for c in context.spread(tie))
        }
        named = {path for y in context.layers(tie) for path in listed_paths(y)}  # where lists differ, TIE203 explains it
        listed = {y.index: tuple(named) for y in context.layers(tie)}
        found: dict[tuple[int, str], list[int]] = {}
        known = len(listed) == len(tie.layers) and is_clear(context.layers(tie))
        for cut in context.cuts if known and len(tie.layers) > 1 else ():  # of a key that one layer has alone, TIE202 speaks
            for place in lost_on_resume(context.pipeline, tie, listed, context.usage, cut.parts):
                if place[1] not in explained:
                    found.setdefault(place, []).append(cut.stages)
        yield from _lost(tie, found)


def _lost(tie: Tie, found: dict[tuple[int, str], list[int]]) -> Findings:
    for path in dict.fromkeys(path for _, path in found):
        layers = [i for i, p in found if p == path]
        counts = tuple(sorted({c for i in layers for c in found[i, path]}))
        yield Found(
            f'"{path}" of key "{tie.key}" at {layers_said(layers)} will not come back from a checkpoint, with {counts_said(counts)}: '
            "a layer with forward_fn writes no checkpoint file; after a resume it holds the values of a fresh start",
            "move what only forward_fn uses into a layer of its own and leave one layer of the key, the first, without forward_fn; "
            "or use the patched module (tiespec patch)",
            key=tie.key,
            layer=layers[-1],
            path=path,
            places=tuple(Place(i, f"{path} is trained and not saved", path) for i in layers),
            stages=counts,
        )


@rule("TIE304", "untied-buffer", "warning", "diverge")
def untied_buffer(context: Context) -> Findings:
    """A buffer of a tied module changes in training, or a forward pass writes to a parameter: nothing keeps its copies equal.

    Running statistics (`nn.BatchNorm1d`) and counters are updated in every stage from what that stage sees. DeepSpeed reduces
    gradients, and buffers have none; to list one does not help (TIE102). `nn.Embedding(max_norm=...)` scales the rows that it
    looks up, in the stage that looks them up; with ZeRO-1 or in bf16 each step puts the optimizer's values back, and the stages
    compute with different ones until then (seen on 0.19.8).

    Fails:

        class Block(nn.Module):                                             # tied
            def __init__(self):
                self.norm = nn.BatchNorm1d(64)

    Right: a norm without running statistics (`nn.LayerNorm`), or the norm in a layer of its own.
    """
    config = context.settings.config
    for tie in context.ties:
        counts = tuple(c.stages for c in context.spread(tie))
        changed: dict[str, list[int]] = {}
        for index, path in sorted(context.usage.changed):
            if index in tie.layers:
                changed.setdefault(path, []).append(index)
        for path, layers in changed.items() if counts else ():
            parameter = context.pipeline.layers[layers[0]].parameter(path)
            is_buffer, restored = parameter.is_buffer, parameter.requires_grad and config.keeps_weights
            then = f'the stages compute with different values of "{path}"' if restored else f'the copies of "{path}"'
            yield Found(
                f'{_what(context, layers[0], path)} at {layers_said(layers)}: with {counts_said(counts)} {then} of key "{tie.key}"'
                + ("" if restored else " drift apart"),
                "use a norm without running statistics, or move it into a layer of its own"
                if is_buffer
                else "do it after the optimizer's step, on every stage: an embedding without max_norm",
                key=tie.key,
                layer=layers[0],
                path=path,
                places=tuple(Place(i, f"{path} is updated in forward", path) for i in layers),
                stages=counts,
                consequence="wrong-forward" if restored else "diverge",
            )


def _what(context: Context, layer: int, path: str) -> str:
    is_buffer = context.pipeline.layers[layer].parameter(path).is_buffer
    return f'buffer "{path}" changes in training' if is_buffer else f'the forward pass writes to "{path}" (max_norm)'


@rule("TIE308", "stray-parameter", "error", "untrained")
def stray_parameter(context: Context) -> Findings:
    """A Parameter is trained through a closure and belongs to no layer.

    A `forward_fn`, a function between layers or the loss function can reach a module that is no layer of the pipeline. It
    gets gradients, but `PipelineModule.parameters()` does not list it: no optimizer steps it, no stage moves it to its
    device and no checkpoint holds it.

    Fails:

        head = nn.Linear(hidden, vocabulary)
        layers = [..., lambda x: head(x)]

    Right:

        layers = [..., LayerSpec(nn.Linear, hidden, vocabulary)]
    """
    for stray in context.usage.strays:
        if stray.owner is not None:
            continue
        where = "loss_fn" if stray.layer is None else f"layer {stray.layer}"
        shape = "x".join(str(size) for size in stray.shape) or "scalar"
        yield Found(
            f"{where} trains a Parameter of shape {shape} that belongs to no layer: no optimizer steps it, no checkpoint holds it",
            "make it part of a layer: a module in the list of layers, or a parameter of the tied module",
            key=None if stray.layer is None else context.pipeline.layers[stray.layer].key,
            layer=stray.layer,
        )
