"""The library: what the commands do, for an object that is already in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tiespec.spec import TieSpec
from tiespec.verdict import Report


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

    Where the lists alone do not make training right, or may hang, there is a ``UserWarning`` for each reason. The object,
    the random generators and the environment are left as they were found. Specs are built on the meta
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
        example_inputs (Callable | None): returns ``(inputs, labels)``; used where ``input`` is empty. For a class or
            function, the one beside it in its module is used where none is given.
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
    made = generate_spec(analysis.pipeline, analysis.usage, filters)
    for remark in made.remarks:
        warnings.warn(f"key {remark.key}: {remark.message}; {remark.help}", stacklevel=2)
    return made.spec


def check(
    obj: Any,
    *,
    stages: int | Sequence[int] = (),
    dp: int = 1,
    tp: int = 1,
    partition: str | None = None,
    ds_config: str | dict[str, Any] | None = None,
    deepspeed: str | None = None,
    param_groups: Callable[..., Any] | None = None,
    spec: str | None = None,
    input: Sequence[str] = (),
    example_inputs: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """Whether every tie of a pipeline will hold: ``assert tiespec.check(build_layers, stages=4).ok``.

    Args:
        obj: as for ``generate``.
        stages (int | Sequence[int]): numbers of stages; left out: the PipelineModule's own, else 1 to the number of
            layers, at most 16.
        dp (int): data-parallel copies.
        tp (int): tensor-parallel ranks of a stage.
        partition (str | None): DeepSpeed's ``partition_method``; None for the PipelineModule's own, or ``parameters``.
        ds_config (str | dict | None): DeepSpeed's config, as a file or as its content.
        deepspeed (str | None): the release on the cluster; None for the installed one.
        param_groups (Callable | None): from a module to the optimizer's parameter groups.
        spec (str | None): a recorded spec to compare with.
        input, example_inputs, loss_fn: as for ``generate``.
        select, ignore (Sequence[str]): codes of rules, or their beginnings.

    Raises:
        UsageError: an option that cannot be understood.
        TargetError: the object is one plain module, or does not build.
    """
    from tiespec.checking import Options, check_object, check_target
    from tiespec.state import process_kept

    options = Options(
        stages=(stages,) if isinstance(stages, int) else tuple(stages), data_parallel=dp, tensor_parallel=tp,
        partition=partition, ds_config=ds_config, deepspeed=deepspeed, spec=spec, select=tuple(select), ignore=tuple(ignore),
    )  # fmt: skip
    with process_kept():
        if isinstance(obj, str):
            return check_target(obj, options, given=input)
        return check_object(obj, _name_of(obj), options, input, example_inputs, loss_fn, param_groups)


def _name_of(obj: Any) -> str:
    return str(getattr(obj, "__name__", type(obj).__name__))
