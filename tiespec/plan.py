"""Which targets ``tiespec check`` looks at, each with its options: from the command line, or from the config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiespec.config import Config, TargetConfig, find_config
from tiespec.errors import UsageError
from tiespec.spec import SPEC_FILE, load


@dataclass(frozen=True)
class Planned:
    """One target to check.

    Args:
        target (str): its text.
        timeout (float): seconds for loading it.
        options (dict[str, Any]): of the job ``check``, as JSON.
    """

    target: str
    timeout: float
    options: dict[str, Any]


def plan(target: str | None, given: dict[str, Any], timeout: float | None) -> tuple[list[Planned], str | None]:
    """The targets, and the folder that their paths are relative to (None for the working directory).

    Args:
        target (str | None): from the command line; None for those of the config.
        given (dict[str, Any]): options of the command line that were given; they come before the config's.
        timeout (float | None): from the command line.

    Raises:
        UsageError: there is no target, or the config is wrong.
    """
    found = find_config(Path.cwd())
    config, folder = (found[1], found[0].parent) if found else (Config(), Path.cwd())
    if target is not None:
        return [_planned(TargetConfig(target=target), config, given, timeout)], None
    targets = config.targets or _of_spec_file(folder)
    where = None if folder == Path.cwd() else os.path.relpath(folder)
    return [_planned(_with_spec(t, folder), config, given, timeout) for t in targets], where


def _of_spec_file(folder: Path) -> list[TargetConfig]:
    if not (folder / SPEC_FILE).exists():
        raise UsageError(
            "there is no TARGET to check",
            f"name one: tiespec check model.py; or list targets under [tool.tiespec] in pyproject.toml; or write a {SPEC_FILE}",
        )
    return [TargetConfig(target=load(folder / SPEC_FILE).target, spec=SPEC_FILE)]


def _with_spec(target: TargetConfig, folder: Path) -> TargetConfig:
    """A ``tiespec.json`` beside the config belongs to the target that it names."""
    file = folder / SPEC_FILE
    if target.spec is None and file.exists() and load(file).target == target.target:
        return target.model_copy(update={"spec": SPEC_FILE})
    return target


def _planned(target: TargetConfig, config: Config, given: dict[str, Any], timeout: float | None) -> Planned:
    by_key = target.ignore if isinstance(target.ignore, dict) else {}
    everywhere = [] if isinstance(target.ignore, dict) else target.ignore
    options: dict[str, Any] = {
        "target": target.target, "setup": target.setup, "input": target.input, "stages": target.stages,
        "data_parallel": target.dp, "tensor_parallel": target.tp, "partition": target.partition,
        "ds_config": target.ds_config, "deepspeed": target.deepspeed, "param_groups": target.param_groups,
        "spec": target.spec, "select": config.select, "ignore": [*config.ignore, *everywhere], "by_key": by_key,
        "severities": config.severities,
    }  # fmt: skip
    return Planned(target.target, timeout or target.timeout, {**options, **given})
