"""Make a training script's module importable on a laptop, and record what it hands to DeepSpeed.

While ``recording()`` is active, ``PipelineModule.__init__`` notes its arguments instead of building anything, every
``LayerSpec`` notes the line it was written on, and a process group that the script starts is torch's fake one.
"""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tiespec.blame import blame_calls
from tiespec.pipeline import CallSite, Location

RANK_VARIABLES = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@dataclass
class Record:
    """What a PipelineModule's constructor was given.

    Args:
        layers (list[Any]): the layers as given.
        arguments (dict[str, Any]): the constructor's other arguments, by name, defaults applied.
        owner (type): the class that was constructed.
    """

    layers: list[Any]
    arguments: dict[str, Any]
    owner: type


@dataclass
class Recording:
    """What was seen while recording.

    Args:
        records (list[Record]): one per PipelineModule that was constructed, in order.
        notes (list[str]): what DeepSpeed would have refused.
        models (list[Any]): the transformers models that were constructed.
    """

    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)


_RECORDS: weakref.WeakKeyDictionary[Any, Record] = weakref.WeakKeyDictionary()
_CALLS: weakref.WeakKeyDictionary[Any, tuple[CallSite, ...]] = weakref.WeakKeyDictionary()


def record_of(module: Any) -> Record | None:
    """The record of a PipelineModule that was constructed while recording."""
    return _RECORDS.get(module)


def line_of(spec: Any) -> Location | None:
    """The line on which a LayerSpec was written, if it was made while recording."""
    calls = calls_of(spec)
    return Location(calls[0].file, calls[0].line) if calls else None


def calls_of(spec: Any) -> tuple[CallSite, ...]:
    """The calls in the user's source that made a LayerSpec, the innermost first; none if it was not made while recording."""
    return _CALLS.get(spec, ())


@contextmanager
def recording() -> Iterator[Recording]:
    """Record PipelineModules and specs; leave DeepSpeed, torch and the environment as they were."""
    recording = Recording()
    with ExitStack() as stack:
        stack.enter_context(rank_variables())
        stack.enter_context(fake_process_group())
        stack.enter_context(_recorded_pipelines(recording))
        stack.enter_context(_recorded_lines(recording))
        stack.enter_context(_recorded_models(recording))
        yield recording


@contextmanager
def rank_variables() -> Iterator[None]:
    """Set the launcher's variables that are absent, as a single rank sees them."""
    absent = [name for name in RANK_VARIABLES if name not in os.environ]
    os.environ.update({name: RANK_VARIABLES[name] for name in absent})
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute has another value in the body."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _recorded_pipelines(recording: Recording) -> Iterator[None]:
    from deepspeed.pipe import PipelineModule
    from torch import nn

    signature = inspect.signature(PipelineModule.__init__)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        arguments.pop("self")
        layers = list(arguments.pop("layers"))
        nn.Module.__init__(self)
        self.loss_fn = arguments.get("loss_fn")
        record = Record(layers, arguments, type(self))
        recording.records.append(record)
        _RECORDS[self] = record

    with replaced(PipelineModule, "__init__", __init__):
        yield


@contextmanager
def _recorded_lines(recording: Recording) -> Iterator[None]:
    from deepspeed.pipe import LayerSpec

    original = LayerSpec.__init__

    def __init__(self: Any, typename: Any, *args: Any, **kwargs: Any) -> None:
        _CALLS[self] = blame_calls(sys._getframe(1))
        try:
            original(self, typename, *args, **kwargs)
        except (TypeError, RuntimeError) as error:
            if not callable(typename):
                raise
            recording.notes.append(_refusal(typename, line_of(self), error))
            self.typename, self.module_args, self.module_kwargs = typename, args, kwargs

    with replaced(LayerSpec, "__init__", __init__):
        yield


@contextmanager
def _recorded_models(recording: Recording) -> Iterator[None]:
    """Models of transformers say which of their weights are tied. Where it is not imported there are none."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None:
        yield
        return
    original = transformers.PreTrainedModel.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recording.models.append(self)
        original(self, *args, **kwargs)

    with replaced(transformers.PreTrainedModel, "__init__", __init__):
        yield


def _refusal(typename: Any, location: Location | None, error: Exception) -> str:
    where = f"{location.file}:{location.line}: " if location else ""
    name = getattr(typename, "__qualname__", repr(typename))
    return (
        f"{where}{name} is not a module class; the installed DeepSpeed refuses the spec ({error}). "
        "Pass a class: wrap the factory in a module whose constructor calls it"
    )


@contextmanager
def without_extension() -> Iterator[None]:
    """DeepSpeed compiles a C++ extension for CPU groups, for collectives of inference that nothing here needs.

    A process that is killed while it compiles leaves a lock behind on which every later one waits.
    """
    ds_torch = import_module("deepspeed.comm.torch")  # as an attribute of deepspeed.comm, "torch" is torch itself
    if not hasattr(ds_torch, "build_shm_op"):
        yield
        return
    with replaced(ds_torch, "build_shm_op", lambda: None):
        yield


@contextmanager
def fake_process_group() -> Iterator[None]:
    """A process group that the script starts is torch's fake one: every collective returns at once."""
    import deepspeed.comm.comm as ds_comm
    import torch
    import torch.distributed as dist

    was_running, backend = dist.is_initialized(), ds_comm.cdb
    with ExitStack() as stack:
        for owner in (dist, dist.distributed_c10d):
            stack.enter_context(replaced(owner, "init_process_group", _start_fake(dist.init_process_group)))
        stack.enter_context(replaced(ds_comm, "init_deepspeed_backend", lambda *args, **kwargs: None))
        stack.enter_context(without_extension())
        if not torch.cuda.is_available():  # torch.cuda.set_device(LOCAL_RANK) is a habit; there is nothing to set here
            stack.enter_context(replaced(torch.cuda, "set_device", lambda device: None))
        try:
            yield
        finally:
            if dist.is_initialized() and not was_running:
                dist.destroy_process_group()
                ds_comm.cdb = backend


def _start_fake(start: Callable[..., None]) -> Callable[..., None]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        start(backend="fake", store=FakeStore(), rank=rank, world_size=world_size)

    return init_process_group
