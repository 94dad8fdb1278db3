"""What a DeepSpeed config file says about precision and ZeRO. Read as DeepSpeed reads it, with hjson."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hjson

from tiespec.errors import UsageError

Precision = Literal["fp32", "fp16", "bf16"]
_DTYPES: dict[str, Precision] = {
    **dict.fromkeys(("fp32", "float32", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp16", "half", "float16", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}  # fmt: skip


@dataclass(frozen=True)
class DsConfig:
    """The part of a DeepSpeed config that decides what happens to ties.

    Args:
        precision: of the parameters.
        zero_stage (int): 0 to 3.
        offload (bool): whether the optimizer is offloaded.
        accumulation: dtype in which gradients are accumulated; None for the parameters'.
        train_batch (int | None): ``train_batch_size``.
        micro_batch (int | None): ``train_micro_batch_size_per_gpu``.
        micro_batches (int | None): ``gradient_accumulation_steps``.
    """

    precision: Precision = "fp32"
    zero_stage: int = 0
    offload: bool = False
    accumulation: Precision | None = None
    train_batch: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None

    @property
    def uses_bf16_optimizer(self) -> bool:
        """Whether DeepSpeed's ``BF16_Optimizer`` runs (0.19.8, ``_do_optimizer_sanity_check``)."""
        if self.precision != "bf16":
            return False
        if self.zero_stage == 0:
            return True
        return self.zero_stage == 1 and self.accumulation == "fp32" and not self.offload

    @property
    def keeps_weights(self) -> bool:
        """Whether DeepSpeed's optimizer has flat weights of its own, copied into the parameters in each step (0.19.8)."""
        return self.zero_stage > 0 or self.precision != "fp32"

    @property
    def hides_gradients(self) -> bool:
        """Whether the tie reduction finds no gradient on any rank: they are kept in fp32 on the host (seen on 0.19.8)."""
        return self.precision == "bf16" and self.zero_stage == 1 and self.offload and self.accumulation == "fp32"


def read_ds_config(path: str) -> DsConfig:
    """Read a DeepSpeed config.

    Args:
        path (str): a JSON file; comments and trailing commas are allowed, as DeepSpeed allows them.

    Raises:
        UsageError: it cannot be read, or is no object.
    """
    return parse_ds_config(ds_config_content(path), path)


def ds_config_content(path: str) -> Any:
    """The content of a DeepSpeed config, once it is known that it can be read.

    Raises:
        UsageError: it cannot be read, or is no object.
    """
    try:
        content = hjson.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, hjson.HjsonDecodeError) as error:
        raise UsageError(f"cannot read the DeepSpeed config {path}: {error}", "pass the file that DeepSpeed gets") from error
    parse_ds_config(content, path)
    return json.loads(json.dumps(content))  # hjson gives ordered dicts


def parse_ds_config(content: Any, path: str) -> DsConfig:
    """The same for the content, as a dict.

    Raises:
        UsageError: a value has the wrong type.
    """
    if not isinstance(content, dict):
        raise UsageError(f"the DeepSpeed config {path} is a {type(content).__name__}, not an object", "pass DeepSpeed's JSON")
    bf16 = _section(content, "bf16", path) or _section(content, "bfloat16", path)
    precision: Precision = (
        "bf16" if bf16.get("enabled") else "fp16" if _section(content, "fp16", path).get("enabled") else "fp32"
    )
    zero = _section(content, "zero_optimization", path)
    offload = zero.get("cpu_offload") or _section(zero, "offload_optimizer", path).get("device", "none") != "none"
    accumulation = _section(content, "data_types", path).get("grad_accum_dtype")
    if accumulation is not None and accumulation not in _DTYPES:
        raise UsageError(f"{path}: data_types.grad_accum_dtype is {accumulation!r}", "write fp32, fp16 or bf16")
    stage = zero.get("stage", 0)
    if not isinstance(stage, int):
        raise UsageError(f"{path}: zero_optimization.stage is {stage!r}", "write 0, 1, 2 or 3")
    sizes = [content.get(n) for n in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    batch = [size if isinstance(size, int) else None for size in sizes]  # "auto" is for the trainer to fill in
    return DsConfig(precision, int(stage), bool(offload), _DTYPES[accumulation] if accumulation else None, *batch)


def _section(content: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    section = content.get(name) or {}
    if not isinstance(section, dict):
        raise UsageError(f"{path}: {name} is {section!r}, not an object", "write it as DeepSpeed's documentation shows it")
    return section
