"""One rank: builds the user's pipeline for real, trains, saves, builds anew, loads; writes what it held into files."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tiespec.guest import guest
from tiespec.recorder import replaced, without_extension
from tiespec.state import seed_all
from tiespec.target import load_for_real, load_function
from tiespec.verification.compare import largest
from tiespec.verification.strays import outside, untrained
from tiespec.verification.task import Plan, Task, config_of, read_plan
from tiespec.verification.watch import watch

Say = Callable[..., None]
JOINED = "TIESPEC_JOINED"
"""Set in a rank that a launcher has started: the ranks meet where its variables say."""
BACKENDS = {"cpu": "gloo"}
"""By accelerator, where DeepSpeed's own choice is not wanted: for the CPU it may look for oneCCL."""


def run_rank(task: Task, say: Say) -> None:
    """Do what ``task`` asks for, as the rank that the environment says this process is.

    ``say`` gets a phase, a loss, or the end; ``built``, ``trained`` and ``resumed`` are written into the task's folder.
    """
    import deepspeed

    rank = int(os.environ["RANK"])
    watch(str(Path(task.folder, f"now{rank}")))
    backend = BACKENDS.get(os.environ.get("DS_ACCELERATOR", ""))
    with without_extension():
        if JOINED in os.environ:
            deepspeed.init_distributed(backend)
        else:  # no port that somebody else could take meanwhile
            place = {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
            deepspeed.init_distributed(backend, init_method=f"file://{Path(task.folder, 'store').resolve()}", **place)
    say(phase="joined")
    stock_signature()
    if task.patched:
        from tiespec.runtime.module import install

        install()
    plan, batch = read_plan(task.folder), torch.load(Path(task.folder, "batch.pt"), weights_only=True)
    with without_dropout(), _second_start_ignored():
        with _first_broadcast_seen(str(Path(task.folder, f"received{rank}.json"))):
            pipeline, engine = _started(task, plan, batch, 100 + 17 * rank)
        _write(task, "built", rank, pipeline)
        strays = outside(pipeline)
        say(phase="built")
        for _ in range(task.steps):
            say(loss=float(engine.train_batch(_repeated(batch, engine))))
        _write(task, "trained", rank, pipeline)
        torch.save(untrained(strays), Path(task.folder, f"untrained{rank}.pt"))
        del strays
        say(phase="trained")
        _resume(task, plan, batch, engine, rank, say)
    say(end=True)


def _resume(task: Task, plan: Plan, batch: Any, engine: Any, rank: int, say: Say) -> None:
    folder = str(Path(task.folder, "checkpoint"))
    say(phase="saving")
    engine.save_checkpoint(folder)
    say(phase="saved")
    again, engine = _started(task, plan, batch, 5000 + 17 * rank)
    say(phase="built again")
    engine.load_checkpoint(folder, load_module_only=True)
    _write(task, "resumed", rank, again)


def _started(task: Task, plan: Plan, batch: Any, seed: int) -> tuple[Any, Any]:
    import deepspeed

    seed_all(seed)
    pipeline = build_pipeline(task, plan)
    parameters = _groups(task, pipeline)
    config = config_of(task, _leading(batch["inputs"]))
    engine, *_ = deepspeed.initialize(model=pipeline, model_parameters=parameters, config=config)
    return pipeline, engine


def _groups(task: Task, pipeline: Any) -> list[Any]:
    """What the optimizer gets: the user's groups, or what is trained."""
    if task.param_groups is None:
        return [p for p in pipeline.parameters() if p.requires_grad]
    function = load_function(task.param_groups, "--param-groups")
    with guest("calling the --param-groups function"):
        return list(function(pipeline))


def build_pipeline(task: Task, plan: Plan) -> Any:
    """The target as a PipelineModule: its own class, or DeepSpeed's around its layers; or tiespec's in their place.

    Raises:
        TargetError: the user's code failed.
    """
    from deepspeed.pipe import PipelineModule

    with _arguments_set(task, plan):
        value, namespace = load_for_real(task.target, task.setup)
        if isinstance(value, PipelineModule):
            return value
        layers: Any = list(value) if isinstance(value, (nn.Sequential, nn.ModuleList)) else value
        loss_fn = getattr(namespace, "loss_fn", None)
        return PipelineModule(layers=layers, num_stages=plan.stages, loss_fn=loss_fn)


@contextmanager
def _arguments_set(task: Task, plan: Plan) -> Iterator[None]:
    """What the command line says of stages and partition holds for the user's class, too."""
    from deepspeed.pipe import PipelineModule

    original, stock = PipelineModule.__init__, stock_signature()

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = stock.bind(self, *args, **kwargs).arguments
        given.pop("self")
        given |= {"num_stages": plan.stages, "topology": None, "loss_fn": loss_of(plan, given.get("loss_fn"))}
        if task.partition is not None:
            given["partition_method"] = task.partition
        original(self, **given, **({"ties": plan.proposals} if task.patched else {}))

    with replaced(PipelineModule, "__init__", __init__):
        yield


@functools.cache
def stock_signature() -> inspect.Signature:
    """Of DeepSpeed's constructor, asked before tiespec's is installed in its place."""
    from deepspeed.pipe import PipelineModule

    return inspect.signature(PipelineModule.__init__)


def loss_of(plan: Plan, loss_fn: Callable[..., Any] | None) -> Callable[..., Any]:
    """The user's loss function where there are labels for it; else the mean square of the outputs."""
    return loss_fn if loss_fn is not None and plan.labels else mean_square


def mean_square(outputs: Any, labels: Any) -> torch.Tensor:
    """A loss for outputs of any shape."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    return torch.stack([t.float().pow(2).mean() for t in tensors if t.is_floating_point()]).sum()


def _leading(inputs: Any) -> int:
    first = inputs if isinstance(inputs, torch.Tensor) else inputs[0]
    return int(first.shape[0])


def _repeated(batch: Any, engine: Any) -> Iterator[Any]:
    """The same batch again and again, in the precision of the parameters."""
    dtype = next((p.dtype for p in engine.module.parameters()), torch.float32)
    while True:
        yield cast(batch["inputs"], dtype), batch["labels"]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Nested tensors, those of floating point in another precision."""
    if isinstance(value, (tuple, list)):
        return type(value)(cast(item, dtype) for item in value)
    return value.to(dtype) if torch.is_floating_point(value) else value


@contextmanager
def without_dropout() -> Iterator[None]:
    """Random layers of two processes cannot be compared."""
    with replaced(torch.nn.functional, "dropout", lambda input, *args, **kwargs: input):
        yield


@contextmanager
def _first_broadcast_seen(file: str) -> Iterator[None]:
    """Write down which tensors the first broadcast of the ties has changed: [layer, path, by how much at most]."""
    from deepspeed.pipe import PipelineModule

    original = PipelineModule._synchronize_tied_weights

    def _synchronize_tied_weights(self: Any) -> None:
        before = held(self)
        original(self)
        after = held(self)
        received = [[i, path, largest(t, after[i][path])] for i, tensors in before.items() for path, t in tensors.items()]
        Path(file).write_text(json.dumps([line for line in received if line[2] != 0]))

    with replaced(PipelineModule, "_synchronize_tied_weights", _synchronize_tied_weights):
        yield


@contextmanager
def _second_start_ignored() -> Iterator[None]:
    """Code that starts a process group itself finds it started."""
    with replaced(torch.distributed, "init_process_group", lambda *args, **kwargs: None):
        yield


def _write(task: Task, when: str, rank: int, pipeline: Any) -> None:
    torch.save(held(pipeline), Path(task.folder, f"{when}{rank}.pt"))


def held(pipeline: Any) -> dict[int, dict[str, torch.Tensor]]:
    """Layer -> path -> tensor, for the layers of this rank: parameters, and the buffers that a checkpoint holds."""
    from deepspeed.pipe import TiedLayerSpec

    found = {}
    for index in range(pipeline._local_start, pipeline._local_stop):
        spec = pipeline._layer_specs[index]
        layer = getattr(pipeline, str(index), None)  # the patched module has one for a second class under a key, too
        if layer is None and isinstance(spec, TiedLayerSpec):
            layer = pipeline.tied_modules[spec.key]
        if isinstance(layer, nn.Module):
            kept = layer.state_dict()
            buffers = {name: buffer for name, buffer in layer.named_buffers() if name in kept}
            named = {**dict(layer.named_parameters()), **buffers}
            found[index] = {name: tensor.detach().cpu().clone() for name, tensor in named.items() if not is_lazy(tensor)}
    return found


def reporter(task: Task, rank: int) -> Say:
    """A function that adds a line of JSON to the rank's report."""
    file = Path(task.folder, f"report{rank}")

    def say(**line: Any) -> None:
        with open(file, "a") as report:
            report.write(json.dumps(line) + "\n")

    return say
