"""What a model says of its own weights, beside its objects and keys: that two are one, or that they are not."""

from __future__ import annotations

from tiespec.pipeline import Config, Layer, Parameter, Pipeline, Tie
from tiespec.rules.context import listed_paths

Place = tuple[int, str]
"""(layer, canonical path) of a parameter."""
Held = tuple[Layer, Parameter]


def dropped_ties(pipeline: Pipeline) -> list[tuple[str, Place, Place]]:
    """Two parameters that the model declares as tied, and that are neither one object nor of one key.

    Returns:
        list[tuple[str, Place, Place]]: who says so, and the two places; the model's own list (``_tied_weights_keys``) comes
        before its config (``tie_word_embeddings``), which is asked only where the model names none.
    """
    layers, found = pipeline.layers, []
    for declared in pipeline.declared:
        (one, first), (two, second) = declared.first, declared.second
        if not _tied((layers[one], layers[one].parameter(first)), (layers[two], layers[two].parameter(second))):
            found.append((f"{declared.model} declares them as tied", declared.first, declared.second))
    return found or _dropped_by_config(pipeline)


def _dropped_by_config(pipeline: Pipeline) -> list[tuple[str, Place, Place]]:
    config = _config(pipeline)
    if config is None or not config.ties_embeddings or config.vocabulary is None:
        return []
    tables = _vocabulary_tables(pipeline, config.vocabulary)
    if len(tables) < 2 or tables[0][0] is tables[-1][0] or any(_tied(tables[0], other) for other in tables[1:]):
        return []
    (a, p), (b, q) = tables[0], tables[-1]
    return [(f"{config.typename}.tie_word_embeddings is True", (a.index, p.path), (b.index, q.path))]


def weights_apart(pipeline: Pipeline, tie: Tie) -> list[tuple[str, Place, Place]]:
    """Weights that a key joins and that the model keeps apart.

    Returns:
        list[tuple[str, Place, Place]]: why they are two (a live model's values, or the config), and the two places.
    """
    config = _config(pipeline)
    untied = config is not None and not config.ties_embeddings
    pairs = _listed_pairs(pipeline, tie)
    apart = [pair for pair in pairs if _given_apart(*pair)]
    if not apart and config is not None and untied:
        apart = [(a, b) for a, b in pairs if a[1].shape and a[1].shape[0] == config.vocabulary]
    why = f"{config.typename}.tie_word_embeddings is False" if config is not None and untied else "they hold different values"
    return [(why, (a.index, p.path), (b.index, q.path)) for (a, p), (b, q) in apart]


def _config(pipeline: Pipeline) -> Config | None:
    return next((layer.config for layer in pipeline.layers if layer.config is not None), None)


def _vocabulary_tables(pipeline: Pipeline, vocabulary: int) -> list[Held]:
    """The trainable tables with a row for each word: embeddings and heads."""
    return [
        (layer, p) for layer in pipeline.layers for p in layer.trainable()
        if p.shape is not None and len(p.shape) == 2 and p.shape[0] == vocabulary
    ]  # fmt: skip


def _tied(a: Held, b: Held) -> bool:
    same_key = a[0].key is not None and a[0].key == b[0].key
    return same_key or a[1].identity == b[1].identity or a[1].storage == b[1].storage


def _listed_pairs(pipeline: Pipeline, tie: Tie) -> list[tuple[Held, Held]]:
    """What the lists join: the first layer's parameters, each with that of every other layer."""
    built = [pipeline.layers[i] for i in tie.layers if pipeline.layers[i].unbuilt is None]
    listed = [[(layer, layer.parameter(path)) for path in listed_paths(layer)] for layer in built]
    return [pair for other in listed[1:] for pair in zip(listed[0], other, strict=False)]


def _given_apart(a: Held, b: Held) -> bool:
    """Whether they are two objects of a live model, with different values."""
    return a[1].given and b[1].given and a[1].identity != b[1].identity and a[1].digest != b[1].digest
