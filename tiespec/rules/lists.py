"""Is `tied_weight_attr` a list that every rank reads alike, of parameters that a tie can handle?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from tiespec.pipeline import Layer, Parameter
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import (
    ORDERED,
    READ_ONCE,
    UNORDERED,
    Context,
    counts_said,
    is_ordered,
    layers_said,
    list_said,
    listed_paths,
)
from tiespec.verdict import Consequence

Findings = Iterator[Found | Undecided]

LISTS_SINCE = Version("0.11.2")
BYTES_SINCE = Version("0.19.8")
"""The release from which the engine broadcasts every parameter as bytes, which one that is permuted cannot be."""


_READ = {
    **dict.fromkeys(
        UNORDERED, "its order differs from process to process, so the ranks reduce different parameters with each other"
    ),
    **dict.fromkeys(
        READ_ONCE,
        "it is empty after the first read, so nothing is ever reduced and the copies drift apart",
    ),
}


@rule("TIE105", "unordered-paths", "error", "diverge")
def unordered_paths(context: Context) -> Findings:
    """`tied_weight_attr` is no list: it has no fixed order, or can be read only once.

    DeepSpeed stores what it is given and reads it in every step. The order of a set of names depends on the process
    (PYTHONHASHSEED), so the ranks reduce different parameters with each other: a mix where their sizes are equal, an abort
    of a rank where they are not. A generator is empty after the first read, so nothing is ever reduced. None, or a number, raises. A subclass
    of `str` is read letter by letter.

    Fails:

        TiedLayerSpec("embed", Embedding, tied_weight_attr={"word.weight", "norm.weight"})

    Right:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight", "norm.weight"])
    """
    for tie in context.ties:
        wrong = [layer for layer in context.layers(tie) if not is_ordered(layer) and layer.listed_as not in ORDERED]
        raises = any(layer.listed_as not in _READ for layer in wrong)
        counts = context.parallel() if raises else tuple(cut.stages for cut in context.spread(tie))
        if not wrong or not counts or all(_only_broadcast(layer) for layer in wrong):
            continue
        layer, kind = wrong[0], wrong[0].listed_as or "None"
        why = _READ.get(kind, "DeepSpeed raises when it reads names from it")
        consequence: Consequence = "diverge" if kind in _READ else "crash"
        listed = [layer.parameter(path) for path in listed_paths(layer)] if kind in UNORDERED else []
        if len({parameter.numel for parameter in listed}) > 1:
            consequence, why = "crash", f"{_READ[kind]}, and a rank is aborted where two of other sizes meet"
        elif listed and not any(parameter.requires_grad for parameter in listed):
            consequence, why = (
                "wrong-forward",
                "its order differs from process to process, so the ranks get each other's values",
            )
        if kind in READ_ONCE and any(is_ordered(y) for y in context.layers(tie)):
            consequence, why = "hang", "it is empty after the first read, and the ranks with a list wait for the others"
        names = sorted(n.text for n in layer.listed)
        yield Found(
            f'tied_weight_attr of key "{tie.key}" is a {kind} ({layers_said([y.index for y in wrong])}): {why}',
            f"write a list: {list_said(names)}" if names else "write a list of names",
            key=tie.key,
            layer=layer.index,
            places=tuple(Place(y.index, f"tied_weight_attr is a {y.listed_as}") for y in wrong),
            stages=counts,
            consequence=consequence,
        )


def _only_broadcast(layer: Layer) -> bool:
    """Whether a list that is read once does all that it has to: what it names is frozen."""
    paths = listed_paths(layer)
    return layer.listed_as in READ_ONCE and bool(paths) and not any(layer.parameter(p).requires_grad for p in paths)


@rule("TIE106", "list-unsupported", "error", "crash")
def list_unsupported(context: Context) -> Findings:
    """More than one name, and a DeepSpeed that knows only one.

    Up to 0.11.1 `tied_weight_attr` is one string, and a list of names raises a `TypeError` while the pipeline is built.

    Fails:

        TiedLayerSpec("block", Block, tied_weight_attr=["weight", "bias"])  # DeepSpeed 0.11.1

    Right:

        TiedLayerSpec("block", Block, tied_weight_attr="weight")

    Update DeepSpeed to 0.11.2, or tie modules that have one parameter.
    """
    if context.settings.deepspeed >= LISTS_SINCE:
        return
    for tie in context.ties:
        long = [layer for layer in context.layers(tie) if len(layer.listed) > 1]
        if long and context.parallel():
            yield Found(
                f'tied_weight_attr of key "{tie.key}" has {len(long[0].listed)} names, and DeepSpeed {context.settings.deepspeed} '
                "takes one string: TypeError while the pipeline is built",
                f"use DeepSpeed {LISTS_SINCE} or newer",
                key=tie.key,
                layer=long[0].index,
                stages=context.parallel(),
            )


@rule("TIE107", "unsupported-parameter", "error", "crash")
def unsupported_parameter(context: Context) -> Findings:
    """A listed Parameter that the collectives of a tie cannot handle.

    - A sparse gradient (`nn.Embedding(sparse=True)`) at one layer and a dense one at another: the ranks wait for each other
      (hang, seen on 0.19.8 with gloo); where DeepSpeed's BF16_Optimizer runs, it raises before (crash, seen on 0.19.8).
    - A lazy module (`nn.LazyLinear`) has no tensor when the first broadcast comes: it raises.
    - A Parameter that is a slice of columns: the collective refuses it. One that is a transpose: DeepSpeed 0.19.8 refuses it, older
      releases broadcast its memory as it is, so that its values are in other places where the other layer's is no transpose.

    A lazy module and a transpose raise without a tie and with one stage, too: DeepSpeed broadcasts every parameter, as bytes,
    when the engine is made. So does a sparse gradient with ZeRO-1 or in bf16, which flatten gradients (seen on 0.19.8).

    Fails:

        self.word = nn.Embedding(vocabulary, hidden, sparse=True)

    Right:

        self.word = nn.Embedding(vocabulary, hidden)
    """
    for tie in context.ties:
        counts = tuple(cut.stages for cut in context.spread(tie))
        for layer in context.layers(tie) if counts else ():
            for path in dict.fromkeys(listed_paths(layer)):
                trouble = _trouble(context, layer, path)
                if trouble is not None:
                    what, consequence, remedy = trouble
                    yield Found(
                        f'"{path}" of key "{tie.key}" at {layers_said([layer.index])} {what}, with {counts_said(counts)}',
                        remedy,
                        key=tie.key,
                        layer=layer.index,
                        path=path,
                        places=(Place(layer.index, what, path),),
                        stages=counts,
                        consequence=consequence,
                    )
    yield from _refused_by_the_engine(context)


def _refused_by_the_engine(context: Context) -> Findings:
    """What the broadcast of all parameters to the data-parallel copies refuses, or the optimizer, where no tie was refused before."""
    flattened = context.settings.config.keeps_weights
    tied = {i for tie in context.ties if context.spread(tie) for i in tie.layers}
    for layer in context.pipeline.layers:
        for p in layer.parameters:
            listed = layer.index in tied and p.path in listed_paths(layer)
            sparse = flattened and (layer.index, p.path) in context.usage.sparse
            trouble = None if p.is_buffer or listed else _anywhere(p, context.settings.deepspeed >= BYTES_SINCE, sparse)
            if trouble is not None:
                what, remedy = trouble
                yield Found(f'"{p.path}" of {layers_said([layer.index])} {what}', remedy, layer=layer.index, path=p.path)


def _anywhere(parameter: Parameter, permuted: bool, sparse: bool) -> tuple[str, str] | None:
    """What is wrong with a parameter without a tie, and the remedy."""
    if parameter.shape is None:
        return f"is a lazy parameter: {_BROADCAST}", _SIZED
    if permuted and _is_dense(parameter) and not _ends_innermost(parameter):
        return f"is not contiguous: {_BROADCAST}", _WHOLE
    return (f"gets a sparse gradient: {_FLAT}", _DENSE) if sparse else None


def _ends_innermost(parameter: Parameter) -> bool:
    """Whether neighbours in the last dimension are neighbours in memory, as a view as bytes wants it."""
    shape = parameter.shape or (1,)
    return shape[-1] < 2 or parameter.stride[-1] * parameter.numel == parameter.nbytes


def _is_dense(parameter: Parameter) -> bool:
    """Whether a tensor has no gaps, in whichever order its dimensions are: one with gaps loses them when it is cast or moved."""
    sizes = [(step, size) for step, size in zip(parameter.stride, parameter.shape or (), strict=True) if size > 1]
    expected = parameter.nbytes // max(1, parameter.numel)
    for step, size in sorted(sizes):
        if step != expected:
            return False
        expected *= size
    return True


_BROADCAST = "DeepSpeed broadcasts every parameter when the engine is made, and raises"
_SCATTERED = "has its values in another order in memory than at another layer: the first broadcast puts them in other places"
_FLAT, _DENSE = "DeepSpeed's optimizer cannot flatten it", "build it with sparse=False"
_WHOLE, _SIZED = "make it a Parameter of its own: .contiguous()", "give its sizes: no Lazy module"


def _trouble(context: Context, layer: Layer, path: str) -> tuple[str, Consequence, str] | None:
    parameter = layer.parameter(path)
    if (layer.index, path) in context.usage.sparse:
        config, once = context.settings.config, layer.listed_as in READ_ONCE
        if once and not config.keeps_weights:
            return None  # nothing is reduced, as TIE105 says
        if config.uses_bf16_optimizer or config.hides_gradients or once:
            return f"gets a sparse gradient: {_FLAT}", "crash", _DENSE
        return "gets a sparse gradient: the ranks wait for each other in its reduction", "hang", _DENSE
    if parameter.shape is None:
        return "is a lazy parameter: it has no tensor when the first broadcast comes", "crash", _SIZED
    if parameter.contiguous:
        return None
    if not _is_dense(parameter):
        return "has gaps: the first broadcast refuses it", "crash", _WHOLE
    if context.settings.deepspeed >= BYTES_SINCE and not _ends_innermost(parameter):
        return f"is not contiguous: {_BROADCAST}", "crash", _WHOLE
    return None if _laid_out_alike(context, layer, path) else (_SCATTERED, "diverge", _WHOLE)


def _laid_out_alike(context: Context, layer: Layer, path: str) -> bool:
    """Whether the parameters that are paired with one have their values in the same order in memory."""
    at = listed_paths(layer).index(path)
    lists = [(y, listed_paths(y)) for y in context.pipeline.layers if y.key == layer.key and y.unbuilt is None]
    return len({y.parameter(paths[at]).stride for y, paths in lists if at < len(paths)}) == 1


@rule("TIE108", "unknown-argument", "error", "crash")
def unknown_argument(context: Context) -> Findings:
    """An argument of a spec that nothing takes.

    What `TiedLayerSpec` does not know itself goes to the constructor of the layer, once the stage is built: a `TypeError`
    there, or nothing at all where the constructor has a `**kwargs`. `tied_weight_attrs=` is the commonest one; then the
    default list `["weight"]` is in force.

    Fails:

        TiedLayerSpec("embed", Embedding, tied_weight_attrs=["word.weight"])

    Right:

        TiedLayerSpec("embed", Embedding, tied_weight_attr=["word.weight"])
    """
    for layer in context.pipeline.layers:
        if layer.unbuilt is not None:
            yield Found(
                f"{layers_said([layer.index])}: {layer.typename} {_clean(layer.unbuilt)}: TypeError when its stage is built",
                _spelled(layer.unbuilt),
                key=layer.key,
                layer=layer.index,
            )
        for name in layer.swallowed if layer.key is not None and layer.unbuilt is None else ():
            yield Found(
                f"{layers_said([layer.index])}: {name}= is no argument of TiedLayerSpec and disappears in the **kwargs of {layer.typename}",
                _spelled(name),
                key=layer.key,
                layer=layer.index,
                consequence="diverge",
            )


def _clean(text: str) -> str:
    return text.replace("got an unexpected", "takes no").replace("missing a required", "misses the required")


def _spelled(text: str) -> str:
    if "tied_weight" in text:
        return "it is spelled tied_weight_attr"
    return "it is spelled forward_fn" if "forward" in text else "mend the arguments of the spec"
