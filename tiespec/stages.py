"""Which layers go to which stage: the installed DeepSpeed's own partitioner, asked without building anything."""

from __future__ import annotations

import contextlib
import io
from types import MethodType, SimpleNamespace

from tiespec.errors import UsageError
from tiespec.lean import partitions_asked_once
from tiespec.pipeline import Pipeline

METHODS = "write uniform, parameters or type:REGEX"


def cut(pipeline: Pipeline, num_stages: int, method: str | None = None) -> tuple[int, ...]:
    """The first layer of every stage, and the number of layers at the end.

    ``PipelineModule._partition_layers`` is called on a stand-in that knows the layers' names and parameter counts.

    Args:
        pipeline (Pipeline): the layers.
        num_stages (int): at least 1, at most the number of layers.
        method (str | None): ``uniform``, ``parameters`` or ``type:REGEX``; None for the pipeline's own.

    Raises:
        UsageError: more stages than layers, or a method that DeepSpeed refuses.
    """
    from deepspeed.pipe import PipelineModule

    if not 1 <= num_stages <= len(pipeline.layers):
        raise UsageError(
            f"cannot cut {len(pipeline.layers)} layers into {num_stages} stages", f"pass --stages 1 to {len(pipeline.layers)}"
        )
    stand_in = SimpleNamespace(
        num_stages=num_stages,
        global_rank=1,  # rank 0 prints the partition
        _topo=SimpleNamespace(get_dim=lambda axis: num_stages, get_coord=lambda rank: SimpleNamespace(pipe=0)),
        _grid=SimpleNamespace(get_stage_id=lambda: 0),
        _layer_specs=[SimpleNamespace(__name__=layer.name) if layer.name else None for layer in pipeline.layers],
        _count_layer_params=lambda: [sum(p.numel for p in layer.trainable()) for layer in pipeline.layers],
        _set_bounds=lambda start, stop: None,
        loss_fn=None,
    )
    stand_in._find_layer_type = MethodType(PipelineModule._find_layer_type, stand_in)
    method = method or pipeline.partition
    try:
        with contextlib.redirect_stdout(io.StringIO()), partitions_asked_once():
            PipelineModule._partition_layers(stand_in, method=method)
    except (NotImplementedError, RuntimeError, IndexError) as error:
        raise UsageError(f"DeepSpeed cannot partition by {method!r}: {error}", METHODS) from error
    return tuple(stand_in.parts)


def stage_of(layer: int, parts: tuple[int, ...]) -> int:
    """The stage (0-based) that owns a layer."""
    return next(stage for stage in range(len(parts) - 1) if parts[stage] <= layer < parts[stage + 1])


def one_layer_per_stage(pipeline: Pipeline) -> tuple[int, ...]:
    """The finest cut."""
    return tuple(range(len(pipeline.layers) + 1))
