"""Is what the model declares what the pipeline ties, with the same optimizer settings?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.pipeline import Config, Layer, Parameter, Tie
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import Context, counts_said, layers_said, listed_paths

Findings = Iterator[Found | Undecided]


def _config(context: Context) -> Config | None:
    return next((layer.config for layer in context.pipeline.layers if layer.config is not None), None)


def _vocabulary_tables(context: Context, config: Config) -> list[tuple[Layer, Parameter]]:
    """The trainable tables with a row for each word: embeddings and heads."""
    return [
        (layer, p) for layer in context.pipeline.layers for p in layer.trainable()
        if p.shape is not None and len(p.shape) == 2 and p.shape[0] == config.vocabulary
    ]  # fmt: skip


def _tied(a: tuple[Layer, Parameter], b: tuple[Layer, Parameter]) -> bool:
    same_key = a[0].key is not None and a[0].key == b[0].key
    return same_key or a[1].identity == b[1].identity or a[1].storage == b[1].storage


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
    for declared in context.pipeline.declared:
        (one, first), (two, second) = declared.first, declared.second
        layers = context.pipeline.layers
        if _tied((layers[one], layers[one].parameter(first)), (layers[two], layers[two].parameter(second))):
            continue
        yield _dropped(f"{declared.model} declares them as tied", (layers[one], first), (layers[two], second))
        return
    config = _config(context)
    if config is None or not config.ties_embeddings or config.vocabulary is None:
        return
    tables = _vocabulary_tables(context, config)
    if len(tables) > 1 and not any(_tied(tables[0], other) for other in tables[1:]):
        (a, p), (b, q) = tables[0], tables[-1]
        if a.index != b.index:
            yield _dropped(f"{config.typename}.tie_word_embeddings is True", (a, p.path), (b, q.path))


def _dropped(why: str, first: tuple[Layer, str], second: tuple[Layer, str]) -> Found:
    (a, p), (b, q) = first, second
    return Found(
        f'"{p}" of layer {a.index} and "{q}" of layer {b.index} are two Parameters without a common key, though {why}',
        "make the layers TiedLayerSpecs of one key; or say tie_word_embeddings=False, if two weights are meant",
        layer=b.index,
        path=q,
        places=(Place(a.index, f"{a.typename} has {p}", p), Place(b.index, f"{b.typename} has {q}", q)),
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
    config = _config(context)
    for tie in context.ties:
        counts = tuple(c.stages for c in context.spread(tie))
        pairs = _given_apart(context, tie) if counts else []
        untied = config is not None and not config.ties_embeddings
        if not pairs and untied and counts:
            pairs = _kept_apart(context, tie, config)
        for (a, p), (b, q) in pairs[:1]:
            why = f"{config.typename}.tie_word_embeddings is False" if config and untied else "they hold different values"
            yield Found(
                f'key "{tie.key}" joins "{p.path}" of layer {a.index} and "{q.path}" of layer {b.index}, which are two weights '
                f"({why}): with {counts_said(counts)} the one of layer {b.index} is overwritten when the pipeline is built",
                "give the layers different keys, or write LayerSpecs; if one weight is meant, let the model share it",
                key=tie.key,
                layer=b.index,
                path=q.path,
                places=(Place(a.index, f"holds {p.path}", p.path), Place(b.index, f"holds {q.path}, another object", q.path)),
                stages=counts,
            )


Pairs = list[tuple[tuple[Layer, Parameter], tuple[Layer, Parameter]]]


def _listed_pairs(context: Context, tie: Tie) -> Pairs:
    layers = context.layers(tie)
    first = [(layers[0], layers[0].parameter(path)) for path in listed_paths(layers[0])] if layers else []
    others = [[(y, y.parameter(path)) for path in listed_paths(y)] for y in layers[1:]]
    return [pair for other in others for pair in zip(first, other, strict=False)]


def _given_apart(context: Context, tie: Tie) -> Pairs:
    """Weights of a live model that are two objects with different values."""
    return [
        (a, b) for a, b in _listed_pairs(context, tie)
        if a[1].given and b[1].given and a[1].identity != b[1].identity and a[1].digest != b[1].digest
    ]  # fmt: skip


def _kept_apart(context: Context, tie: Tie, config: Config | None) -> Pairs:
    assert config is not None
    return [(a, b) for a, b in _listed_pairs(context, tie) if a[1].shape and a[1].shape[0] == config.vocabulary]


@rule("TIE307", "split-optimizer-group", "warning", "diverge")
def split_optimizer_group(context: Context) -> Findings:
    """The copies of a tied parameter get different optimizer settings.

    Every stage makes its own optimizer from its own modules. Groups by module type or by name (no weight decay for
    embeddings) can sort the copies of one weight differently where the classes under a key differ: the reduced gradient is
    the same, the step is not, and the copies drift apart (seen on 0.19.8). Looked at with `--param-groups`.

    Fails:

        decay = [p for m in module.modules() if isinstance(m, nn.Linear) for p in m.parameters()]

    Right: sort by parameter, by its shape or by the key of the tie.
    """
    if context.groups is None:
        return
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
