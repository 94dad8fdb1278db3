"""Where tiespec builds: on meta or on the CPU, also what the user's code sends to an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

Device = Literal["meta", "cpu"]


@contextmanager
def on_device(device: Device) -> Iterator[None]:
    """New tensors go to ``device``, also those that are sent to an accelerator. For the CPU the caller's default stays."""
    with NoAccelerator(device), torch.device("meta") if device == "meta" else nullcontext():
        yield


class NoAccelerator(TorchFunctionMode):
    """``x.cuda()``, ``x.to("cuda:0")`` and ``torch.zeros(3, device="cuda")`` give tensors on ``device``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for every function of its API."""
        if func is torch.Tensor.cuda:
            return args[0].to(self.device) if self.device == "meta" else args[0]
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._here(kwargs["device"])}
        if func is torch.Tensor.to:
            args = (args[0], *(self._here(a) if isinstance(a, (str, torch.device)) else a for a in args[1:]))
        return func(*args, **kwargs)

    def _here(self, device: Any) -> Any:
        if isinstance(device, int):
            return self.device
        kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
        return device if device is None or kind in ("cpu", "meta") else self.device
