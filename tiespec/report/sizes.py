"""Numbers of bytes and of parameters, for people."""

from __future__ import annotations


def bytes_said(number: int) -> str:
    """``0 B``, ``196.5 MiB``: powers of 1024."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def count_said(number: int) -> str:
    """``512``, ``51.5 M``, ``1.8 B``: powers of 1000, as model sizes are given."""
    return _scaled(number, 1000, ("", "k", "M", "B", "T")).strip()


def _scaled(number: int, base: int, units: tuple[str, ...]) -> str:
    size, power = float(number), 0
    while round(size, 1) >= base and power < len(units) - 1:
        size, power = size / base, power + 1
    return f"{size:.1f} {units[power]}" if power else f"{number} {units[0]}"


def span_said(layers: list[int]) -> str:
    """``3``, ``1-6``."""
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def middle_cut(text: str, width: int) -> str:
    """A text in at most so many characters; the beginning and the end of a name say most."""
    if len(text) <= width:
        return text
    head, tail = (width - 1) // 2, width // 2
    return f"{text[:head]}…{text[len(text) - tail :]}"
