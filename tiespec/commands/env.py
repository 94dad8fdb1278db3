"""``tiespec env``."""

from __future__ import annotations

import typer


def env() -> None:
    """Print versions and platform, to paste into a bug report."""
    from tiespec.environment import facts

    for name, value in facts():
        typer.echo(f"{name:<15} {value}")
