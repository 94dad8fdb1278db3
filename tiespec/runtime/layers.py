"""The layers of a stage: modules behind a ``forward_fn``, second classes under a key, and gradients of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from deepspeed.pipe import TiedLayerSpec
from torch import nn

from tiespec.runtime.copies import Copy, replace_parameter, share_buffers
from tiespec.runtime.handshake import layout, names_of, read


class _Touch(torch.autograd.Function):
    """The output as it is; in the backward pass, a gradient of zeros for every parameter."""

    @staticmethod
    def forward(context: Any, output: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(*parameters)
        return output.view_as(output)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (gradient, *(torch.zeros_like(p) for p in context.saved_tensors))


_touch: Callable[..., torch.Tensor] = _Touch.apply


def _touched(output: Any, parameters: Sequence[torch.Tensor]) -> Any:
    """Touch the first floating-point tensor of a layer's output."""
    live = [p for p in parameters if p.requires_grad]
    if not live or not torch.is_grad_enabled():
        return output
    if isinstance(output, torch.Tensor):
        return _touch(output, *live) if output.is_floating_point() else output
    if isinstance(output, (tuple, list)):
        parts = list(output)
        for i, part in enumerate(parts):
            if isinstance(part, torch.Tensor) and part.is_floating_point():
                parts[i] = _touch(part, *live)
                break
        return type(output)(parts)
    return output


class Bound:
    """A module behind its ``forward_fn``. Stock uses a ``functools.partial``, which has no state to save."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self.module, self.function = module, function
        self.touch: list[torch.Tensor] = []
        self.has_file = True

    def __call__(self, inputs: Any) -> Any:
        """As the engine calls it."""
        return _touched(self.function(self.module, inputs), self.touch)

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
        function, tensors = here.forward_funcs[last], copy.tensors
        if isinstance(function, Bound):
            function.touch.extend(tensors)
        else:
            function.register_forward_hook(lambda module, inputs, output, tensors=tensors: _touched(output, tensors))


def _parameters(function: Any) -> Iterator[nn.Parameter]:
    module = function.module if isinstance(function, Bound) else function
    return module.parameters() if isinstance(module, nn.Module) else iter(())
