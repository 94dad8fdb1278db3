"""The library: what the commands do, for an object that is already in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiespec.spec import TieSpec


def generate(
    obj: Any,
    *,
    min_numel: int = 1,
    max_numel: int | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    input: Sequence[str] = (),
    example_inputs: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> TieSpec:
    """The ``tied_weight_attr`` lists of a pipeline, or of one module.

    The object, the random generators and the environment are left as they were found. Specs are built on the meta
    device; modules that are already built are copied to it.

    Args:
        obj: a list of layers (modules, LayerSpec, TiedLayerSpec, functions), an ``nn.Sequential``, a PipelineModule, a
            module, a class or function without required arguments that gives one of these (a PipelineModule that is
            constructed in it needs no process group), or a TARGET string such as ``"model.py:build_layers"``.
        min_numel (int): list only parameters of at least so many elements.
        max_numel (int | None): list only parameters of at most so many elements.
        include (Sequence[str]): if given, list only parameters whose path matches one of these globs.
        exclude (Sequence[str]): list no parameters whose path matches one of these globs.
        input (Sequence[str]): sample input, one per tensor, such as ``"int64[2,16]<50304"``.
        example_inputs (Callable | None): returns ``(inputs, labels)``; used where ``input`` is empty.
        loss_fn (Callable | None): called as ``loss_fn(outputs, labels)``; the PipelineModule's own comes first.

    Raises:
        UsageError: a TARGET or an input that cannot be understood.
        TargetError: the object holds something that is no layer, or a layer that does not build.
    """
    from tiespec.analyse import analyse_object, analyse_target
    from tiespec.choices import Filters
    from tiespec.generation import generate_spec
    from tiespec.state import process_kept

    if isinstance(obj, str):
        with process_kept():
            analysis = analyse_target(obj, given=input)
    else:
        analysis = analyse_object(obj, _name_of(obj), input, example_inputs, loss_fn)
    filters = Filters(min_numel, max_numel, tuple(include), tuple(exclude))
    return generate_spec(analysis.pipeline, analysis.usage, filters).spec


def _name_of(obj: Any) -> str:
    return str(getattr(obj, "__name__", type(obj).__name__))
