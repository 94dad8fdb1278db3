"""One rank of a run of ``distributed.py``: builds, trains, saves, loads; reports in lines of JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import deepspeed
import torch
from deepspeed.pipe import PipelineModule, TiedLayerSpec

from tiespec.recorder import without_extension

Request = dict[str, Any]


def report(request: Request, **line: Any) -> None:
    with open(Path(request["folder"]) / f"report{os.environ['RANK']}", "a") as file:
        file.write(json.dumps(line) + "\n")


def load(request: Request) -> Any:
    file = Path(request["file"])
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


def build(request: Request, module: Any, seed: int) -> Any:
    torch.manual_seed(seed if request["same_seed"] else seed + 17 * int(os.environ["RANK"]))
    made: Any = module
    for name in request["build"].split("."):
        made = getattr(made, name)
    arguments, stages, partition = request["arguments"], request["stages"], request["partition"]
    cls = PipelineModule
    if request["patched"]:
        import tiespec

        cls = tiespec.PipelineModule
        made = tiespec.patched(made) if isinstance(made, type) and issubclass(made, PipelineModule) else made
    if isinstance(made, type) and issubclass(made, PipelineModule):
        return made(num_stages=stages, partition_method=partition, **arguments, **request["module"])
    layers = made(**arguments) if callable(made) and not isinstance(made, torch.nn.Module) else made
    if isinstance(layers, PipelineModule):
        return layers
    loss_fn = getattr(module, "loss_fn", None)
    return cls(layers=layers, num_stages=stages, loss_fn=loss_fn, partition_method=partition, **request["module"])


def start(request: Request, module: Any, seed: int) -> tuple[Any, Any]:
    pipeline = build(request, module, seed)
    groups = getattr(module, "parameter_groups", None)
    parameters = groups(pipeline) if groups else [p for p in pipeline.parameters() if p.requires_grad]
    config = {"steps_per_print": 10**6, **request["ds_config"]}  # 0.15.4 wants it
    engine, *_ = deepspeed.initialize(model=pipeline, model_parameters=parameters, config=config)
    if request["compile_backend"]:
        engine.compile(backend=request["compile_backend"])
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


def save(request: Request, when: str, pipeline: Any, watched: Any = None) -> None:
    """The layers of this rank; a module WATCH of the file, which belongs to no layer, as layer -1."""
    found = held(pipeline)
    if watched is not None:
        found[-1] = {name: tensor.detach().clone() for name, tensor in watched.named_parameters()}
    torch.save(found, Path(request["folder"]) / f"{when}{os.environ['RANK']}.pt")
    report(request, phase=when)


def batches(module: Any, engine: Any) -> Any:
    inputs, labels = module.example_inputs()
    dtype = next(engine.module.parameters()).dtype

    def cast(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(cast(item) for item in value)
        return value.to(dtype) if torch.is_floating_point(value) else value

    while True:
        yield cast(inputs), labels


def main(request: Request) -> None:
    with without_extension():
        deepspeed.init_distributed("gloo")
    report(request, phase="joined")
    module = load(request)
    pipeline, engine = start(request, module, 100)
    watched = getattr(module, "WATCH", None)
    save(request, "built", pipeline, watched)
    for _ in range(request["steps"]):
        report(request, loss=float(engine.train_batch(batches(module, engine))))
    save(request, "trained", pipeline, watched)
    if request["resume"]:
        resume(request, module, engine)
    report(request, end=True)


def resume(request: Request, module: Any, engine: Any) -> None:
    folder = str(Path(request["folder"]) / "checkpoint")
    engine.save_checkpoint(folder)
    report(request, phase="saved")
    again, engine = start(request, module, 5000)
    report(request, phase="built again")
    engine.load_checkpoint(folder, **request["load"])
    save(request, "resumed", again)


def guarded(request: Request) -> NoReturn:
    """Run; report an error; leave without the exit handlers, in which gloo sometimes aborts."""
    try:
        main(request)
    except BaseException as error:
        traceback.print_exc()
        report(request, error=f"{type(error).__name__}: {error}")
        time.sleep(1)  # the rank that holds the store must not go before the others have come
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    guarded(json.loads(sys.argv[1]))
