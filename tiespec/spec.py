"""TieSpec, the content of ``tiespec.json``: read, write, compare. Loads neither torch nor deepspeed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tiespec.errors import SpecError

SPEC_FILE = "tiespec.json"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecParameter(_Data):
    """A parameter of a tied layer.

    Args:
        path: its canonical name; the one of the first layer, where they differ.
        shape: its shape.
        dtype: without the ``torch.`` prefix.
        used_by: the layers (0-based) at which it gets a gradient; None when that is unknown.
        reason: why it is left out of the list; absent for a listed parameter.
    """

    path: str
    shape: list[int]
    dtype: str
    used_by: list[int] | None
    reason: str | None = None


class SpecTie(_Data):
    """The layers of one key and the names to give to each of their specs.

    Args:
        key: the key of the TiedLayerSpecs; the class's name for a plain module.
        layers: 0-based; empty for a plain module.
        typename: the class of the first layer.
        tied_weight_attr: the list for every layer of the key; None when it differs by layer.
        by_layer: layer -> list, when no names are common to all layers; DeepSpeed pairs the names by position.
        parameters: what the list names, in its order.
        left_out: what it does not name, and why.
    """

    key: str
    layers: list[int]
    typename: str
    tied_weight_attr: list[str] | None
    by_layer: dict[str, list[str]] | None = None
    parameters: list[SpecParameter]
    left_out: list[SpecParameter] = Field(default_factory=list)


class SpecProposal(_Data):
    """Layers that share a Parameter without a key.

    Args:
        key: a key that they could have.
        layers: 0-based.
        by_layer: layer -> the names of the shared parameters in it, in the same order.
    """

    key: str
    layers: list[int]
    by_layer: dict[str, list[str]]


class TieSpec(_Data):
    """What ``tiespec.json`` holds.

    ``spec["embed"]`` is the list for ``tied_weight_attr``; ``spec.names("embed", layer=13)`` the list of one layer.
    """

    version: Literal[1] = 1
    target: str
    min_numel: int = 1
    max_numel: int | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None
    ties: list[SpecTie]
    proposals: list[SpecProposal] | None = None

    def __getitem__(self, key: str) -> list[str]:
        """The list for ``tied_weight_attr`` of every layer of a key.

        Raises:
            SpecError: there is no such key, or its lists differ by layer.
        """
        return self.names(key)

    def names(self, key: str, layer: int | None = None) -> list[str]:
        """The list for ``tied_weight_attr`` of a key.

        Args:
            key (str): the key.
            layer (int | None): 0-based index of the layer; needed where the lists differ by layer.

        Raises:
            SpecError: there is no such key or layer, or the lists differ and no layer is given.
        """
        tie = next((t for t in self.ties if t.key == key), None)
        if tie is None:
            raise SpecError(f"{self.target} has no key {key!r}", f"its keys: {', '.join(t.key for t in self.ties) or 'none'}")
        if layer is not None and layer not in tie.layers:
            raise SpecError(f"layer {layer} does not have the key {key!r}", f"its layers: {tie.layers}")
        if tie.tied_weight_attr is not None:
            return list(tie.tied_weight_attr)
        if layer is None:
            raise SpecError(
                f"the names of key {key!r} differ by layer", f"ask for one of them: spec.names({key!r}, layer={tie.layers[0]})"
            )
        assert tie.by_layer is not None
        return list(tie.by_layer[str(layer)])

    def to_json(self) -> str:
        """The text of a spec file: two-space indent, LF, fields without a value left out."""
        return json.dumps(_compact(self.model_dump()), indent=2, ensure_ascii=False) + "\n"


_OPTIONAL = ("max_numel", "include", "exclude", "proposals", "by_layer", "reason")


def _compact(value: object) -> object:
    if isinstance(value, dict):
        return {k: _compact(v) for k, v in value.items() if v is not None or k not in _OPTIONAL}
    return [_compact(v) for v in value] if isinstance(value, list) else value


def parse_spec(text: str, file: str) -> TieSpec:
    """Read the text of a spec file.

    Args:
        text (str): JSON.
        file (str): its path, for messages.

    Raises:
        SpecError: it is no JSON, or no spec of version 1.
    """
    try:
        return TieSpec.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"not a tiespec spec file: {where + ': ' if where else ''}{first['msg']}"
        raise SpecError(message, f"write it anew: tiespec generate TARGET --format json -o {file} --force", file) from error


def load(path: str | Path = SPEC_FILE) -> TieSpec:
    """Read a spec file: ``tied_weight_attr=tiespec.load("tiespec.json")["embed"]``.

    Args:
        path (str | Path): the file, as ``tiespec generate -o`` wrote it.

    Raises:
        SpecError: it cannot be read, or is no spec of version 1.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot read the spec file: {error}", f"write it: tiespec generate TARGET --format json -o {path}", str(path)
        ) from error
    return parse_spec(text, str(path))


def command_of(spec: TieSpec, path: str | None = None) -> str:
    """The ``tiespec generate`` command that makes a spec, on one line.

    Args:
        spec (TieSpec): the spec.
        path (str | None): the file to write it to.
    """
    words = ["tiespec", "generate", spec.target]
    words += ["--min-numel", str(spec.min_numel)] if spec.min_numel != 1 else []
    words += ["--max-numel", str(spec.max_numel)] if spec.max_numel is not None else []
    words += [word for glob in spec.include or () for word in ("--include", glob)]
    words += [word for glob in spec.exclude or () for word in ("--exclude", glob)]
    words += ["-o", path] if path is not None else []
    return shlex.join(words).replace("\n", "\\n")


def json_schema() -> str:
    """The JSON Schema of a spec file, as published in the package (``tiespec/spec.schema.json``)."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **TieSpec.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def differences(recorded: TieSpec, current: TieSpec) -> list[str]:
    """What has changed between a recorded spec and the model's: one sentence each, none when nothing has."""
    found = []
    for field in ("target", "min_numel", "max_numel", "include", "exclude"):
        before, now = getattr(recorded, field), getattr(current, field)
        if before != now:
            found.append(f"{field} was {before!r}, is {now!r}")
    return found + [text for _, text in drift(recorded, current)]


def drift(recorded: TieSpec, current: TieSpec) -> list[tuple[str | None, str]]:
    """What the model yields otherwise than it did: (key, one sentence)."""
    found: list[tuple[str | None, str]] = []
    old, new = {t.key: t for t in recorded.ties}, {t.key: t for t in current.ties}
    found += [(k, f"key {k!r} is gone") for k in sorted(old.keys() - new.keys())]
    found += [(k, f"key {k!r} is new") for k in sorted(new.keys() - old.keys())]
    for key in sorted(old.keys() & new.keys()):
        found += [(key, f"key {key!r}: {text}") for text in _tie_differences(old[key], new[key])]
    if recorded.proposals != current.proposals:
        found.append((None, "the layers that share a Parameter without a key have changed"))
    return found


def _tie_differences(old: SpecTie, new: SpecTie) -> list[str]:
    found = [
        f"{field} was {getattr(old, field)!r}, is {getattr(new, field)!r}"
        for field in ("layers", "typename", "tied_weight_attr", "by_layer")
        if getattr(old, field) != getattr(new, field)
    ]
    before = {p.path: p for p in (*old.parameters, *old.left_out)}
    now = {p.path: p for p in (*new.parameters, *new.left_out)}
    found += [f"parameter {p} was removed" for p in before if p not in now]
    found += [f"parameter {p} {now[p].shape} was added" for p in now if p not in before]
    for path in (p for p in before if p in now):
        for field in ("shape", "dtype", "used_by", "reason"):
            was, is_now = getattr(before[path], field), getattr(now[path], field)
            if was != is_now:
                found.append(f"{path}: {field} was {was}, is {is_now}")
    return found
