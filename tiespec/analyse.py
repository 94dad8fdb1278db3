"""TARGET or object -> Pipeline and Usage: the common beginning of every command."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

from tiespec.capture import Captured, LiveLayer, capture
from tiespec.elsewhere import Device
from tiespec.guest import Progress
from tiespec.lean import without_dynamo
from tiespec.pipeline import Pipeline
from tiespec.recorder import recording
from tiespec.shadow import first_error
from tiespec.state import random_state_kept
from tiespec.target import Loaded, load_object, load_target
from tiespec.trace import REAL_LIMIT, find_usage
from tiespec.usage import Usage


@dataclass(frozen=True)
class Analysis:
    """What is known of a target.

    Args:
        pipeline (Pipeline): its layers.
        usage (Usage): which parameter gets a gradient at which layer.
        live (Sequence[LiveLayer]): the layers as they were built.
        kind: layers, an instance of a PipelineModule subclass, or of DeepSpeed's own class.
        rerun: the first error when other layers stand in for some (``shadow.first_error``); None when there is none, or when
            the usage is unknown.
        loaded (Loaded | None): the target itself; None for a plain module.
        owned (bool): whether its modules belong to tiespec.
    """

    pipeline: Pipeline
    usage: Usage
    live: Sequence[LiveLayer] = field(default=(), repr=False)
    kind: Literal["layers", "subclass", "factory"] = "layers"
    rerun: Callable[[Mapping[int, int]], str | None] = field(default=lambda stands_in: None, repr=False)
    loaded: Loaded | None = field(default=None, repr=False)
    owned: bool = False


def analyse_target(
    text: str, setup: str | None = None, given: Sequence[str] = (), progress: Progress = lambda phase: None
) -> Analysis:
    """Load a TARGET, capture it and find the usage of its parameters. The objects belong to tiespec.

    Raises:
        UsageError: the TARGET, ``--setup`` or ``--input`` is malformed.
        TargetError: the user's code failed.
    """
    return analyse_loaded(load_target(text, setup, progress), given, progress)


def analyse_loaded(loaded: Loaded, given: Sequence[str] = (), progress: Progress = lambda phase: None) -> Analysis:
    """The same for a TARGET that is loaded."""
    return _analyse(loaded, given, owned=True, progress=progress)


def analyse_object(
    value: Any,
    name: str,
    given: Sequence[str] = (),
    example_inputs: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Analysis:
    """The same for an object of the caller's process, which is left as it was found.

    For a class or function, ``example_inputs`` and ``loss_fn`` beside it in its module are used where none are given.
    """
    home = sys.modules.get(getattr(value, "__module__", "")) if inspect.isroutine(value) or inspect.isclass(value) else None
    namespace = SimpleNamespace(
        example_inputs=example_inputs or getattr(home, "example_inputs", None),
        loss_fn=loss_fn or getattr(home, "loss_fn", None),
    )
    with random_state_kept():
        return _analyse(load_object(value, name, namespace), given, owned=False)


def _analyse(loaded: Loaded, given: Sequence[str], owned: bool, progress: Progress = lambda phase: None) -> Analysis:
    captured = _capture(loaded, "meta", progress)
    if captured.pipeline.plain:
        return Analysis(captured.pipeline, Usage("none", None, "a plain module is not run"))
    progress("tracing gradients")
    usage = find_usage(captured.live, loaded.namespace, captured.loss_fn, given, "meta", owned)
    rerun = partial(first_error, captured.live, loaded.namespace, captured.loss_fn, given, "meta", owned)
    if usage.used is None and usage.source != "none":
        usage, rerun = _on_cpu(loaded, given, owned, progress, captured.pipeline, usage)
    analysis = Analysis(captured.pipeline, usage, captured.live, _kind(loaded), loaded=loaded, owned=owned)
    return analysis if usage.used is None else replace(analysis, rerun=rerun)


def _kind(loaded: Loaded) -> Literal["layers", "subclass", "factory"]:
    """A subclass only where the TARGET names the class; a function or an object that gives an instance is a factory."""
    if loaded.record is None:
        return "layers"
    named = re.sub(r"\(.*", "", loaded.text.rpartition(":")[2], flags=re.DOTALL).rpartition(".")[2]
    is_class = named == loaded.record.owner.__name__ and not loaded.record.owner.__module__.startswith("deepspeed.")
    return "subclass" if is_class else "factory"


def _capture(loaded: Loaded, device: Device, progress: Progress) -> Captured:
    with recording(), without_dynamo():  # constructors may start process groups or write specs, too
        return capture(loaded.value, loaded.text, device, loaded.record, loaded.notes, progress, loaded.models)


def _on_cpu(
    loaded: Loaded, given: Sequence[str], owned: bool, progress: Progress, pipeline: Pipeline, on_meta: Usage
) -> tuple[Usage, Any]:
    """The usage with real tensors, where the model is small enough; and ``Analysis.rerun``."""
    if pipeline.nbytes > REAL_LIMIT:
        size = f"{pipeline.nbytes / 2**30:.1f} GiB, over the limit of {REAL_LIMIT / 2**30:.0f} GiB"
        return replace(on_meta, unknown=f"{on_meta.unknown} (the model is too large to be tried for real: {size})"), None
    progress("tracing gradients on the CPU")
    again = loaded.rebuild("cpu")
    captured = _capture(again, "cpu", progress)
    usage = find_usage(captured.live, again.namespace, captured.loss_fn, given, "cpu", owned)
    note = f"gradients were traced with real tensors on the CPU, because meta tensors were refused: {on_meta.unknown}"
    usage = replace(usage, notes=(*usage.notes, note)) if usage.used is not None else usage
    return usage, partial(first_error, captured.live, again.namespace, captured.loss_fn, given, "cpu", owned)
