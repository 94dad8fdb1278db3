"""One rank of a run of ``distributed.py``: builds, trains, saves, loads; reports in lines of JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import PipelineModule, TiedLayerSpec

REQUEST = json.loads(sys.argv[1])
RANK = int(os.environ["RANK"])
FOLDER = Path(REQUEST["folder"])


def report(**line: Any) -> None:
    with open(FOLDER / f"report{RANK}", "a") as file:
        file.write(json.dumps(line) + "\n")


def load() -> Any:
    file = Path(REQUEST["file"])
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


def build(module: Any, seed: int) -> Any:
    torch.manual_seed(seed if REQUEST["same_seed"] else seed + 17 * RANK)
    made: Any = module
    for name in REQUEST["build"].split("."):
        made = getattr(made, name)
    arguments, stages, partition = REQUEST["arguments"], REQUEST["stages"], REQUEST["partition"]
    cls = PipelineModule
    if REQUEST["patched"]:
        import tiespec

        cls = tiespec.PipelineModule
        made = tiespec.patched(made) if isinstance(made, type) and issubclass(made, PipelineModule) else made
    if isinstance(made, type) and issubclass(made, PipelineModule):
        return made(num_stages=stages, partition_method=partition, **arguments, **REQUEST["module"])
    layers = made(**arguments) if callable(made) and not isinstance(made, torch.nn.Module) else made
    loss_fn = getattr(module, "loss_fn", None)
    return cls(layers=layers, num_stages=stages, loss_fn=loss_fn, partition_method=partition, **REQUEST["module"])


def start(module: Any, seed: int) -> tuple[Any, Any]:
    pipeline = build(module, seed)
    groups = getattr(module, "parameter_groups", None)
    parameters = groups(pipeline) if groups else [p for p in pipeline.parameters() if p.requires_grad]
    config = {"steps_per_print": 10**6, **REQUEST["ds_config"]}  # 0.15.4 wants it
    engine, *_ = deepspeed.initialize(model=pipeline, model_parameters=parameters, config=config)
    return pipeline, engine


def held(pipeline: Any) -> dict[int, dict[str, torch.Tensor]]:
    """Layer -> path -> tensor, for the layers of this rank."""
    found = {}
    for index in range(pipeline._local_start, pipeline._local_stop):
        spec = pipeline._layer_specs[index]
        tied = isinstance(spec, TiedLayerSpec)
        layer = pipeline.tied_modules[spec.key] if tied else getattr(pipeline, str(index), None)
        if isinstance(layer, torch.nn.Module):
            named = (*layer.named_parameters(), *layer.named_buffers())
            found[index] = {name: tensor.detach().clone() for name, tensor in named}
    return found


def save(when: str, pipeline: Any, watched: Any = None) -> None:
    """The layers of this rank; a module WATCH of the file, which belongs to no layer, as layer -1."""
    found = held(pipeline)
    if watched is not None:
        found[-1] = {name: tensor.detach().clone() for name, tensor in watched.named_parameters()}
    torch.save(found, FOLDER / f"{when}{RANK}.pt")
    report(phase=when)


def batches(module: Any, engine: Any) -> Any:
    inputs, labels = module.example_inputs()
    dtype = next(engine.module.parameters()).dtype

    def cast(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(cast(item) for item in value)
        return value.to(dtype) if torch.is_floating_point(value) else value

    while True:
        yield cast(inputs), labels


def main() -> None:
    deepspeed.init_distributed("gloo")
    report(phase="joined")
    module = load()
    pipeline, engine = start(module, 100)
    save("built", pipeline, getattr(module, "WATCH", None))
    for _ in range(REQUEST["steps"]):
        report(loss=float(engine.train_batch(batches(module, engine))))
    save("trained", pipeline, getattr(module, "WATCH", None))
    if REQUEST["resume"]:
        engine.save_checkpoint(str(FOLDER / "checkpoint"))
        report(phase="saved")
        again, engine = start(module, 5000)
        report(phase="built again")
        engine.load_checkpoint(str(FOLDER / "checkpoint"))
        save("resumed", again)
    report(end=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        traceback.print_exc()
        report(error=f"{type(error).__name__}: {error}")
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # gloo sometimes aborts at a normal exit
