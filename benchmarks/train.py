"""What a user would run in place of tiespec: the GPT example on stock DeepSpeed; ``torchrun ... -m benchmarks.train``."""

from __future__ import annotations

import itertools
import json
import sys

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
    "gradient_clipping": 0.0,
    "steps_per_print": 10**9,
}


def main(arguments: str, steps: str) -> None:
    """Build the pipeline in two stages and train.

    Args:
        arguments (str): those of ``build_layers``, as JSON.
        steps (str): how many.
    """
    import deepspeed
    from deepspeed.pipe import PipelineModule

    from examples import gpt

    deepspeed.init_distributed("gloo")
    pipeline = PipelineModule(layers=gpt.build_layers(**json.loads(arguments)), num_stages=2, loss_fn=gpt.loss_fn)
    engine, *_ = deepspeed.initialize(model=pipeline, model_parameters=list(pipeline.parameters()), config=CONFIG)
    batches = itertools.repeat(gpt.example_inputs())
    for _ in range(int(steps)):
        engine.train_batch(batches)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
