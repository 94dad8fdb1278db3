"""The caller's process is left as it was found."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def process_kept() -> Iterator[None]:
    """Random generators, ``sys.path`` and ``sys.argv`` are left as they were found."""
    path, arguments = list(sys.path), list(sys.argv)
    with random_state_kept():
        try:
            yield
        finally:
            sys.path[:], sys.argv[:] = path, arguments


@contextmanager
def random_state_kept() -> Iterator[None]:
    """The generators of Python, torch (CPU) and NumPy are left as they were found."""
    import torch

    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def seed_all(seed: int) -> None:
    """Seed the same generators."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def random_state() -> tuple[object, ...]:
    """Of the same generators; two states are equal when nothing was drawn between them."""
    import numpy
    import torch

    return (random.getstate(), str(numpy.random.get_state()), torch.random.get_rng_state().numpy().tobytes())
