"""The layers of a stage: modules behind a ``forward_fn``, second classes under a key, and gradients of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from deepspeed.pipe import TiedLayerSpec
from torch import nn
from torch.utils import _pytree as pytree

from tiespec.runtime.copies import Copy, replace_parameter, share_buffers
from tiespec.runtime.handshake import layout, names_of, read


class _Touch(torch.autograd.Function):
    """A copy of a tensor; in the backward pass, a gradient of zeros for every parameter.

    A copy, because what follows may change it in place, and a view that a Function makes may not be. The parameters are not
    saved for backward: only their shapes are needed, and an embedding with ``max_norm`` writes to its own in between.
    """

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        context.parameters = parameters
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (gradient, *(torch.zeros_like(p) for p in context.parameters))


_touch: Callable[..., torch.Tensor] = _Touch.apply


def touched(value: Any, parameters: Sequence[torch.Tensor]) -> tuple[Any, bool]:
    """Nested tensors, those of floating point touched; and whether nothing is left to do.

    Only for parameters whose gradients an optimizer of DeepSpeed (ZeRO, BF16_Optimizer) takes in the backward pass and keeps
    elsewhere: it has linked them (``_hp_mapping``, all releases). Where ``grad`` stays, ``weights_to_reduce`` fills what is
    missing, and a step costs nothing more.
    """
    live = [p for p in parameters if p.requires_grad and hasattr(p, "_hp_mapping")]
    if not live or not torch.is_grad_enabled():
        return value, True
    if not any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in pytree.tree_leaves(value)):
        return value, False
    return pytree.tree_map_only(torch.Tensor, lambda t: _touch(t, *live) if t.is_floating_point() else t, value), True


def run_touched(function: Callable[[Any], Any], inputs: Any, parameters: Sequence[torch.Tensor]) -> Any:
    """Run a layer whose parameters all get a gradient: what it takes is touched, or what it gives where that is no float.

    The input of a head is smaller than its logits, and touching costs a copy.
    """
    inputs, done = touched(inputs, parameters)
    outputs = function(inputs)
    return outputs if done else touched(outputs, parameters)[0]


class Bound:
    """A module behind its ``forward_fn``. Stock uses a ``functools.partial``, which has no state to save."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self.module, self.function = module, function
        self.touch: list[torch.Tensor] = []
        self.has_file = True

    def __call__(self, inputs: Any) -> Any:
        """As the engine calls it."""
        return run_touched(lambda given: self.function(self.module, given), inputs, self.touch)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's: a partial has none, and stock writes no file for it."""
        return self.module.state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # load_state_dir asks hasattr(layer, "load_state_dict"): a checkpoint of stock DeepSpeed has no file for this layer
        if name == "load_state_dict" and self.__dict__.get("has_file", True):
            return self.module.load_state_dict
        raise AttributeError(name)


def same_recipe(a: TiedLayerSpec, b: TiedLayerSpec) -> bool:
    """Whether one module can be both layers: the same class and constructor arguments, and the same list."""
    if a is b:
        return True
    try:
        return bool(
            a.typename is b.typename
            and a.module_args == b.module_args
            and a.module_kwargs == b.module_kwargs
            and (a.forward_fn is not None or names_of(a) == names_of(b))
        )
    except (TypeError, ValueError, RuntimeError):  # tensors and arrays have no single answer
        return False


def own_module(here: Any, index: int, spec: TiedLayerSpec, shared: nn.Module, owner: TiedLayerSpec) -> nn.Module:
    """The layer's own module, with the tied Parameters of the one that is already there."""
    if here.seed_layers and here.seed_fn is not None:
        here.seed_fn(here.base_seed + index)
    module: nn.Module = spec.build()
    same = layout(module) == layout(shared)
    names = [n for n, _ in module.named_parameters()] if same else names_of(spec)
    sources = names if same else names_of(owner)
    try:
        for name, source in zip(names, sources, strict=True):
            _tie(module, read(module, name), read(shared, source))
    except (AttributeError, ValueError) as error:  # said to all ranks before it is raised
        here._wrong = f'key "{spec.key}" at layer {index}: {error}'
    share_buffers(module, shared)
    here.add_module(str(index), module)
    return module


def _tie(module: nn.Module, old: torch.Tensor, new: torch.Tensor) -> None:
    if old.shape != new.shape:
        raise ValueError(f"{list(old.shape)} cannot be one with {list(new.shape)}")
    replace_parameter(module, old, new)


def touch_all(here: Any, copies: Sequence[Copy]) -> None:
    """Every tied parameter of a stage gets a gradient where the last layer that holds it is run."""
    for copy in copies:
        held = {id(t) for t in copy.tensors}
        last = max(i for i, f in enumerate(here.forward_funcs) if held & {id(p) for p in _parameters(f)})
        function = here.forward_funcs[last]
        if isinstance(function, Bound):
            function.touch.extend(copy.tensors)
        else:
            _hook(function, copy.tensors)


def _hook(module: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """``run_touched`` by hooks, so that the module stays what it is."""

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        (args, kwargs), module._tiespec_touched = touched((args, kwargs), tensors)  # type: ignore[assignment]
        return args, kwargs

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return output if module._tiespec_touched else touched(output, tensors)[0]

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)


def _parameters(function: Any) -> Iterator[nn.Parameter]:
    module = function.module if isinstance(function, Bound) else function
    return module.parameters() if isinstance(module, nn.Module) else iter(())
