"""Which parameter gets a gradient at which layer: forward and backward over the layers, each by itself.

Every layer gets a detached copy of the previous layer's output, as a stage boundary would give it, and its backward
pass runs alone. So a Parameter that several layers share is seen at each of them separately.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tiespec.blame import blame_exception
from tiespec.capture import LiveLayer
from tiespec.elsewhere import Device, on_device
from tiespec.guest import text_of
from tiespec.inputs import Sample, samples, to_device
from tiespec.lean import without_dynamo
from tiespec.state import random_state, random_state_kept, seed_all
from tiespec.usage import Stray, Usage

REAL_LIMIT = 2 * 2**30
"""Bytes of parameters and buffers up to which a model is built for real when meta tensors do not do."""


def find_usage(
    live: Sequence[LiveLayer],
    namespace: Any = None,
    loss_fn: Callable[..., Any] | None = None,
    given: Sequence[str] = (),
    device: Device = "meta",
    owned: bool = False,
) -> Usage:
    """Run forward and backward once and see which parameters got a gradient.

    Args:
        live (Sequence[LiveLayer]): the layers.
        namespace (Any): the module that may define ``example_inputs`` and ``loss_fn``.
        loss_fn (Callable | None): called as ``loss_fn(outputs, labels)``; without it, the outputs are summed.
        given (Sequence[str]): the ``--input`` options.
        device (Device): where to run.
        owned (bool): whether the layers' modules may be used as they are; otherwise copies of them are run.

    Raises:
        UsageError: an input that cannot be read.
        TargetError: ``example_inputs()`` failed.
    """
    if loss_fn is None:
        loss_fn = getattr(namespace, "loss_fn", None)
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        stack.enter_context(without_dynamo())
        tries = samples(given, namespace, live)
        broken = next((index for index, layer in enumerate(live) if layer.module is None and layer.function is None), None)
        if broken is not None:
            return Usage(tries[0].source if tries else "none", None, f"layer {broken} does not build")
        if not tries:
            return Usage("none", None, "no sample input is known")
        try:
            layers = runnable(live, device, owned)
        except Exception as error:  # a module that refuses deepcopy raises whatever it likes
            return Usage(tries[0].source, None, f"the modules cannot be copied: {reason_of(error)}")
        stack.enter_context(on_device(device))
        stack.enter_context(torch.enable_grad())
        if device == "meta":
            stack.enter_context(StrayTensorsToMeta())  # type: ignore[no-untyped-call]
        owners = {id(p): (i, path) for found in (live, layers) for i, y in enumerate(found) for path, p in y.paths.items()}
        seed_all(0)
        before = random_state()
        usage = _first_that_runs(layers, tries, loss_fn, device, owners)
        if usage.used is None or random_state() == before:
            return usage
        seed_all(1)
        return _certain(usage, _first_that_runs(layers, tries, loss_fn, device, owners))


def _certain(first: Usage, second: Usage) -> Usage:
    """What both of two runs use, where the layers draw random numbers: a layer that is dropped at times is no certain use."""
    if first.used is None or second.used is None:
        return first
    both = tuple(a & b for a, b in zip(first.used, second.used, strict=True))
    either = tuple(a ^ b for a, b in zip(first.used, second.used, strict=True))
    notes = tuple(
        f"{path} of layer {index} gets a gradient in one of two runs only; it is counted as unused"
        for index, paths in enumerate(either) for path in sorted(paths)
    )  # fmt: skip
    return replace(first, used=both, notes=(*first.notes, *notes), sparse=first.sparse & second.sparse)


Owners = dict[int, tuple[int, str]]


def _first_that_runs(
    layers: Sequence[LiveLayer],
    tries: Sequence[Sample],
    loss_fn: Callable[..., Any] | None,
    device: Device,
    owners: Owners,
) -> Usage:
    reasons = []
    for sample in tries:
        try:
            return _run(layers, sample, loss_fn, device, owners)
        except Exception as error:  # the user's layers raise whatever they like; the reason is reported
            reasons.append(reason_of(error))
    return Usage(tries[0].source, None, f"the layers do not run on the sample input ({tries[0].source}): {reasons[0]}")


def reason_of(error: BaseException) -> str:
    """An error in one line, with the user's line that it came from."""
    where = blame_exception(error)
    text = (text_of(error).strip().splitlines() or ["no message"])[0]
    return (f"{where.file}:{where.line}: " if where else "") + f"{type(error).__name__}: {text}"


class StrayTensorsToMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A constant that a function holds on the CPU meets meta tensors: take its shape."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())  # operators take tensors and lists of tensors; this is called for each of them
        tensors = [t for a in given for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, torch.Tensor)]
        if len({t.is_meta for t in tensors}) > 1:
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t if t.is_meta else t.to("meta"), (args, kwargs))
        return func(*args, **kwargs)


def runnable(live: Sequence[LiveLayer], device: Device, owned: bool) -> list[LiveLayer]:
    """Layers whose tensors are on ``device`` and may be changed: the given ones, or copies of them.

    The copies keep which layers share a tensor.
    """
    modules = [layer.module for layer in live]
    tensors = {id(t): t for m in modules if m is not None for t in (*m.parameters(), *m.buffers())}
    if owned and all(t.device.type == device for t in tensors.values()):
        return [_with_module(layer, layer.module) for layer in live]
    memo: dict[int, Any] = {key: _moved(tensor, device) for key, tensor in tensors.items()}
    copies = copy.deepcopy(modules, memo)
    return [_with_module(layer, module) for layer, module in zip(live, copies, strict=True)]


def _moved(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    moved = tensor.detach().to(device, copy=True)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def _with_module(layer: LiveLayer, module: nn.Module | None) -> LiveLayer:
    if module is None:
        return layer
    module.train()  # the pipeline engine trains whatever mode the model was left in
    return replace(layer, module=module, paths=dict(module.named_parameters()))


def _run(
    layers: Sequence[LiveLayer], sample: Sample, loss_fn: Callable[..., Any] | None, device: Device, owners: Owners
) -> Usage:
    where = torch.device(device)
    inputs, labels = to_device(sample.inputs, where), to_device(sample.labels, where)
    steps, outputs, changed = [], inputs, set()
    for index, layer in enumerate(layers):
        leaf, before = _boundary(outputs), _versions(layer)
        outputs = layer(_nonleaf(leaf))
        changed |= {(index, path) for path in _changed(layer, before)}
        steps.append((leaf, outputs))
    gradients, notes, found = _loss_gradients(outputs, labels, loss_fn)
    used: list[frozenset[str]] = []
    sparse: set[tuple[int, str]] = set()
    strays = _strays(None, found, {}, owners)
    for index in reversed(range(len(layers))):
        leaf, output = steps[index]
        seen = _backward(layers[index], output, gradients)
        used.append(frozenset(seen.used))
        sparse |= {(index, path) for path in seen.sparse}
        strays = _strays(index, seen.reached, layers[index].paths, owners) + strays
        gradients = [t.grad for t in _tensors(leaf)]
    return Usage(
        sample.source, tuple(reversed(used)), "", notes, frozenset(sparse), frozenset(changed), tuple(dict.fromkeys(strays))
    )  # fmt: skip


_LAZY = -1


def _versions(layer: LiveLayer) -> dict[str, tuple[int, int]]:
    """Which object a buffer or parameter is and how often it was written in place."""
    if layer.module is None:
        return {}
    held = (*layer.module.named_buffers(), *layer.module.named_parameters())
    return {path: (id(tensor), _LAZY if is_lazy(tensor) else tensor._version) for path, tensor in held}


def _changed(layer: LiveLayer, before: dict[str, tuple[int, int]]) -> set[str]:
    lazy = {path for path, (_, version) in before.items() if version == _LAZY}  # it gets its values in the first forward pass
    changed = {path for path, version in _versions(layer).items() if before.get(path) != version} - lazy
    for name, module in layer.module.named_modules() if layer.module is not None and changed else ():
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.modules.batchnorm._NormBase) and f"{prefix}num_batches_tracked" in changed:
            changed |= {f"{prefix}{buffer}" for buffer in module._buffers}  # on meta the statistics are not written
    return changed


def _strays(layer: int | None, reached: Sequence[torch.Tensor], own: dict[str, torch.Tensor], owners: Owners) -> list[Stray]:
    mine = {id(p) for p in own.values()}
    return [Stray(layer, owners.get(id(p)), tuple(p.shape)) for p in reached if id(p) not in mine]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _boundary(value: Any) -> Any:
    """What a stage receives: detached, and wanting a gradient where it is floating point."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().requires_grad_(t.is_floating_point()), value)


def _nonleaf(value: Any) -> Any:
    """A copy that may be changed in place, which a leaf that wants a gradient may not."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.clone() if t.requires_grad else t, value)


def _loss_gradients(
    outputs: Any, labels: Any, loss_fn: Callable[..., Any] | None
) -> tuple[list[torch.Tensor | None], tuple[str, ...], list[nn.Parameter]]:
    """The gradient of the loss for every tensor of the last layer's output, notes, and what the loss function trains."""
    tensors = _tensors(outputs)
    if loss_fn is None or labels is None:
        notes = ("loss_fn was not run: there are no labels; define example_inputs() to run it",) if loss_fn else ()
        return [torch.ones_like(t) if t.requires_grad else None for t in tensors], notes, []
    leaf = _boundary(outputs)
    try:
        loss = loss_fn(_nonleaf(leaf), labels)
        loss = loss[0] if isinstance(loss, (tuple, list)) else loss
        with _gradients_kept(loss) as reached:
            loss.sum().backward()
    except Exception as error:  # the user's function raises whatever it likes; the layers can be traced without it
        if any(t.is_meta for t in tensors):  # it may refuse meta tensors only: real ones are tried next
            raise
        note = f"loss_fn does not run, so the sum of the outputs was taken in its place: {reason_of(error)}"
        return [torch.ones_like(t) if t.requires_grad else None for t in tensors], (note,), []
    return [t.grad for t in _tensors(leaf)], (), reached


@dataclass(frozen=True)
class _Seen:
    used: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    reached: tuple[nn.Parameter, ...] = ()


def _backward(layer: LiveLayer, outputs: Any, gradients: Sequence[torch.Tensor | None]) -> _Seen:
    """The layer's parameters that get a gradient from its output's gradients, and all Parameters that do."""
    pairs = [(t, g) for t, g in zip(_tensors(outputs), gradients, strict=True) if g is not None and t.requires_grad]
    if not pairs:
        return _Seen()
    with _gradients_kept(*(t for t, _ in pairs)) as reached:
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        given = {path: p.grad for path, p in layer.paths.items() if p.grad is not None}
        sparse = tuple(path for path, gradient in given.items() if gradient.layout is not torch.strided)
        return _Seen(tuple(given), sparse, tuple(reached))


@contextmanager
def _gradients_kept(*outputs: torch.Tensor) -> Iterator[list[nn.Parameter]]:
    """The Parameters that a backward pass reaches; they start without a gradient and get their old one back."""
    reached = [p for p in reached_leaves(outputs) if isinstance(p, nn.Parameter)]
    before = [p.grad for p in reached]
    for parameter in reached:
        parameter.grad = None
    try:
        yield reached
    finally:
        for parameter, gradient in zip(reached, before, strict=True):
            parameter.grad = gradient


def reached_leaves(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaf tensors that a backward pass from ``outputs`` would give a gradient."""
    todo: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen: set[Any] = set(todo)
    leaves = [t for t in outputs if t.grad_fn is None and t.requires_grad]
    while todo:
        node = todo.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return leaves
