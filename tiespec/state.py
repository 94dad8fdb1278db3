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
