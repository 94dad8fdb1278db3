"""Weight ties for DeepSpeed pipelines: the lists that train right, before the job starts.

The names are imported when they are used: ``import tiespec`` loads neither torch nor deepspeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiespec.api import check as check
    from tiespec.api import generate as generate
    from tiespec.errors import GuestError as GuestError
    from tiespec.errors import OutputError as OutputError
    from tiespec.errors import SpecError as SpecError
    from tiespec.errors import TargetError as TargetError
    from tiespec.errors import TieError as TieError
    from tiespec.errors import TieMismatchError as TieMismatchError
    from tiespec.errors import TieOutOfSyncError as TieOutOfSyncError
    from tiespec.errors import TiespecError as TiespecError
    from tiespec.errors import TieUnresolvedError as TieUnresolvedError
    from tiespec.errors import UsageError as UsageError
    from tiespec.runtime.module import PipelineModule as PipelineModule
    from tiespec.runtime.module import install as install
    from tiespec.runtime.module import patched as patched
    from tiespec.spec import TieSpec as TieSpec
    from tiespec.spec import load as load
    from tiespec.ties import find_ties as find_ties
    from tiespec.verdict import Report as Report

__version__ = "0.1.0"

_HOME = {
    "check": "tiespec.api",
    "find_ties": "tiespec.ties",
    "generate": "tiespec.api",
    "Report": "tiespec.verdict",
    "load": "tiespec.spec",
    "TieSpec": "tiespec.spec",
    "TiespecError": "tiespec.errors",
    "UsageError": "tiespec.errors",
    "TargetError": "tiespec.errors",
    "SpecError": "tiespec.errors",
    "OutputError": "tiespec.errors",
    "GuestError": "tiespec.errors",
    "TieError": "tiespec.errors",
    "TieMismatchError": "tiespec.errors",
    "TieUnresolvedError": "tiespec.errors",
    "TieOutOfSyncError": "tiespec.errors",
    "PipelineModule": "tiespec.runtime.module",
    "patched": "tiespec.runtime.module",
    "install": "tiespec.runtime.module",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
