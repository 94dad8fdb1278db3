"""What need not be loaded, or asked twice, while a pipeline is analysed. Measured in docs/benchmarks.md."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tiespec.recorder import replaced

_DYNAMO = "torch._dynamo"


class _StandIn(types.ModuleType):
    """Stands for torch's compiler where torch asks it only to leave a function alone; for anything else it makes way."""

    def __init__(self) -> None:
        super().__init__(_DYNAMO)
        self.left_alone: list[Any] = []

    def disable(self, function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """A function that nothing compiles is as it is."""
        self.left_alone.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # the path is asked for when a submodule is imported
            raise AttributeError(name)
        self.make_way()
        return getattr(importlib.import_module(_DYNAMO), name)

    def make_way(self) -> None:
        """The next import finds the real one."""
        if sys.modules.get(_DYNAMO) is self:
            del sys.modules[_DYNAMO]
        torch = sys.modules["torch"]
        if torch.__dict__.get("_dynamo") is self:
            del torch._dynamo
        for function in self.left_alone:  # torch keeps the answer on the function (torch._compile._disable_dynamo)
            getattr(function, "__dict__", {}).pop("__dynamo_disable", None)


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Torch's compiler is not loaded in the body for the sake of functions that it is to leave alone.

    The first random initialisation on meta asks for that, and the import takes about as long as that of torch itself.
    """
    if _DYNAMO in sys.modules:
        yield
        return
    stand_in = _StandIn()
    sys.modules[_DYNAMO] = stand_in
    try:
        yield
    finally:
        stand_in.make_way()


@contextmanager
def partitions_asked_once() -> Iterator[None]:
    """DeepSpeed's partitioner is asked once for the same weights and parts; it is quadratic in the number of layers.

    It is asked by every simulated rank of every number of stages.
    """
    from deepspeed.runtime import utils

    with replaced(utils, "partition_balanced", _remembering(utils.partition_balanced)):
        yield


@functools.cache
def _remembering(partition: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """The same function with a memory; one for each, so that it is kept from one use to the next."""

    @functools.lru_cache(maxsize=1024)
    def remembered(weights: tuple[float, ...], parts: int) -> tuple[int, ...]:
        return tuple(partition(list(weights), parts))

    return lambda weights, num_parts: list(remembered(tuple(weights), num_parts))
