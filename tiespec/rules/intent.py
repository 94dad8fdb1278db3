"""Is what the model declares what the pipeline ties, with the same optimizer settings?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import Context, counts_said, layers_said, listed_paths
from tiespec.rules.intended import dropped_ties, weights_apart

Findings = Iterator[Found | Undecided]


@rule("TIE305", "dropped-declaration", "warning", "diverge")
def dropped_declaration(context: Context) -> Findings:
    """The model says that two weights are tied, and the pipeline's objects are not.

    The config (`tie_word_embeddings`) or the model (`_tied_weights_keys`) declares the tie, but the layers were built or
    copied one by one and hold two Parameters, and no key joins them. The pipeline trains another model than the one the
    config describes.

    Fails:

        layers = [LayerSpec(Embedding, config), ..., LayerSpec(Head, config)]       # config.tie_word_embeddings is True

    Right:

        layers = [TiedLayerSpec("embed", Embedding, config), ..., TiedLayerSpec("embed", Head, config)]

    Or `tie_word_embeddings=False` in the config, if that is what you train.
    """
    layers = context.pipeline.layers
    for why, (one, p), (two, q) in dropped_ties(context.pipeline)[:1]:
        a, b = layers[one], layers[two]
        yield Found(
            f'"{p}" of layer {one} and "{q}" of layer {two} are two Parameters without a common key, though {why}',
            "make the layers TiedLayerSpecs of one key; or say tie_word_embeddings=False, if two weights are meant",
            layer=two,
            path=q,
            places=(Place(one, f"{a.typename} has {p}", p), Place(two, f"{b.typename} has {q}", q)),
        )


@rule("TIE306", "unwanted-tie", "error", "overwritten")
def unwanted_tie(context: Context) -> Findings:
    """A key joins weights that the model keeps apart.

    When the pipeline is built, DeepSpeed broadcasts the listed parameters from the first stage of a key. Where the other
    layer was given a weight of its own (a head that was trained apart, `tie_word_embeddings=False`), that weight is
    overwritten without a word (seen on 0.19.8).

    Fails:

        TiedLayerSpec("embed", Wrap, model.embed_tokens), ..., TiedLayerSpec("embed", Wrap, model.lm_head)  # two weights

    Right:

        LayerSpec(Wrap, model.embed_tokens), ..., LayerSpec(Wrap, model.lm_head)
    """
    for tie in context.ties:
        counts = tuple(c.stages for c in context.spread(tie))
        for why, (one, p), (two, q) in weights_apart(context.pipeline, tie)[:1] if counts else ():
            yield Found(
                f'key "{tie.key}" joins "{p}" of layer {one} and "{q}" of layer {two}, which are two weights '
                f"({why}): with {counts_said(counts)} the one of layer {two} is overwritten when the pipeline is built",
                "give the layers different keys, or write LayerSpecs; if one weight is meant, let the model share it",
                key=tie.key,
                layer=two,
                path=q,
                places=(Place(one, f"holds {p}", p), Place(two, f"holds {q}, another object", q)),
                stages=counts,
            )


@rule("TIE307", "split-optimizer-group", "warning", "diverge")
def split_optimizer_group(context: Context) -> Findings:
    """The copies of a tied parameter get different optimizer settings.

    Every stage makes its own optimizer from its own modules. Groups by module type or by name (no weight decay for
    embeddings) can sort the copies of one weight differently where the classes under a key differ: the reduced gradient is
    the same, the step is not, and the copies drift apart (seen on 0.19.8). Looked at with `--param-groups`.

    And with ZeRO-1 every group is a collective of all stages in each step: where the stages have different numbers of groups,
    they wait for each other (hang, seen on 0.19.8).

    Fails:

        decay = [p for m in module.modules() if isinstance(m, nn.Linear) for p in m.parameters()]

    Right: sort by parameter, by its shape or by the key of the tie.
    """
    if context.groups is None:
        return
    yield from _uneven_groups(context)
    for tie in context.ties:
        counts = tuple(c.stages for c in context.spread(tie))
        layers = context.layers(tie)
        for row in zip(*(listed_paths(y) for y in layers), strict=False) if counts else ():
            settings = [context.groups.get((y.index, path), "no group") for y, path in zip(layers, row, strict=True)]
            if len(set(settings)) > 1:
                said = ", ".join(f"{text} at layer {y.index}" for y, text in zip(layers, settings, strict=True))
                yield Found(
                    f'"{row[0]}" of key "{tie.key}" gets different optimizer settings at {layers_said([y.index for y in layers])} '
                    f"({said}): with {counts_said(counts)} its copies drift apart",
                    "sort the groups by the parameter, not by the type or name of its module",
                    key=tie.key,
                    layer=layers[-1].index,
                    path=row[-1],
                    places=tuple(Place(y.index, text, path) for y, path, text in zip(layers, row, settings, strict=True)),
                    stages=counts,
                )


def _uneven_groups(context: Context) -> Findings:
    """ZeRO-1 reduces the norm of each group over all stages (seen on 0.19.8); it is looked at only where that is so."""
    uneven: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
    for stages, counts in context.group_counts.items():
        if isinstance(counts, str):
            what = f"the optimizer groups with {counts_said((stages,))} are unknown: {counts}"
            yield Undecided(what, "make the --param-groups function work for every stage, or pass --stages")
            continue
        other = next((stage for stage, count in enumerate(counts) if count != counts[0]), None)
        if other is not None:
            uneven[stages] = (0, counts[0]), (other, counts[other])
    if uneven:
        fewest, ((one, first), (two, second)) = next(iter(uneven.items()))
        others = f" (so it is with {counts_said(tuple(uneven)[1:])})" if len(uneven) > 1 else ""
        yield Found(
            f"with {counts_said((fewest,))} the optimizer has {first} groups in stage {one} and {second} in stage {two}{others}; with "
            "ZeRO-1 each group is a collective of all stages, and they wait for each other",
            "make as many groups for every stage, none of them empty",
            stages=tuple(uneven),
            consequence="hang",
        )
