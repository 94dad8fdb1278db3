"""``[tool.tiespec]`` in ``pyproject.toml``: which targets to check, and how. Loads neither torch nor deepspeed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tiespec.errors import UsageError
from tiespec.expression import nearest_name
from tiespec.verdict import Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _dashes(name: str) -> str:
    return name.replace("_", "-")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_dashes)


class TargetConfig(_Table):
    """One target.

    Args:
        target: TARGET, relative to the folder of ``pyproject.toml``.
        stages, dp, tp, partition, ds-config, deepspeed, input, setup, param-groups, spec, timeout: as the options.
        ignore: codes, or key -> codes.
    """

    target: str
    stages: list[int] = Field(default_factory=list)
    dp: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    partition: str | None = None
    ds_config: str | None = None
    deepspeed: str | None = None
    input: list[str] = Field(default_factory=list)
    setup: str | None = None
    param_groups: str | None = None
    spec: str | None = None
    timeout: float = Field(default=120.0, gt=0)
    ignore: list[str] | dict[str, list[str]] = Field(default_factory=list)


class Config(_Table):
    """The table ``[tool.tiespec]``.

    Args:
        targets: what ``tiespec check`` checks when it gets no TARGET.
        select, ignore: codes, or their beginnings.
        severities: code -> ``error``, ``warning`` or ``note``.
    """

    targets: list[TargetConfig] = Field(default_factory=list)
    select: list[str] = Field(default_factory=list)
    ignore: list[str] = Field(default_factory=list)
    severities: dict[str, Severity] = Field(default_factory=dict)


def find_config(folder: Path) -> tuple[Path, Config] | None:
    """The nearest ``pyproject.toml`` at or above a folder that has a table ``[tool.tiespec]``.

    Raises:
        UsageError: it is no TOML, or the table has unknown keys or wrong types; all of them are named.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            table = _read(file).get("tool", {}).get("tiespec")
            if table is not None:
                return file, parse_config(table, str(file))
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return table
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}", "mend the file") from error


def parse_config(table: Any, file: str) -> Config:
    """Check the table ``[tool.tiespec]``.

    Raises:
        UsageError: unknown keys or wrong types, all of them.
    """
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        wrong = [_problem(e) for e in error.errors()]
        what = "; ".join(text for text, _ in wrong)
        raise UsageError(f"{file}: [tool.tiespec]: {what}", " ".join(dict.fromkeys(help for _, help in wrong))) from error


def _problem(error: Any) -> tuple[str, str]:
    where = [str(part) for part in error["loc"]]
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        model: type[BaseModel] = TargetConfig if where[0] == "targets" else Config
        return f"unknown key {name!r}", nearest_name(where[-1], [field.alias or n for n, field in model.model_fields.items()])
    return f"{name}: {error['msg']}", "see `tiespec check --help`"
