"""Failing models and their twins: the rules of gradients and topology."""

from __future__ import annotations

from tests.rules.parts import BF16, GOOD, MIXED, WORDS, ZERO1, Example, ends

EXAMPLES = (
    Example(
        "TIE401",
        ends('tie(["scale", "word.weight"])', 'tie(["scale", "word.weight"], logits)'),
        GOOD,
        "crash",
        paths=("scale",),
        name="before another",
    ),
    Example(
        "TIE401",
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], logits)'),
        GOOD,
        "hang",
        paths=("scale",),
        name="fp32",
    ),
    Example(
        "TIE401",
        ends('tie(["word.weight", "scale"])', 'tie(["word.weight", "scale"], logits)'),
        GOOD,
        "crash",
        paths=("scale",),
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
        name="bf16",
    ),
    Example(
        "TIE402",
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits, Frozen)'),
        "class Frozen(Embedding):\n    def __init__(self):\n        super().__init__()\n        self.word.weight.requires_grad_(False)\n"
        + ends('tie(["word.weight"], None, Frozen)', 'tie(["word.weight"], logits, Frozen)'),
        "crash",
        paths=("word.weight",),
        options={"ds_config": BF16},
    ),
    Example(
        "TIE403",
        GOOD,
        GOOD,
        "diverge",
        paths=("word.weight",),
        options={
            "ds_config": {
                **BF16,
                "data_types": {"grad_accum_dtype": "fp32"},
                "zero_force_ds_cpu_optimizer": False,
                "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
                "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
            }
        },
        passing={"ds_config": {**ZERO1, **BF16}},
        copies=WORDS,
    ),
    Example(
        "TIE501",
        "import os\n"
        + ends("tie(NAMES)", "tie(NAMES, logits)", "NAMES = ['word.weight']\n").replace(
            "    return", "    NAMES = ['word.weight', 'scale'] if os.environ['RANK'] == '1' else ['word.weight']\n    return"
        ),
        GOOD,
        "hang",
        paths=("scale",),
        options={"stages": 2},
        name="list by rank",
    ),
    Example(
        "TIE501",
        "class Pipe(PipelineModule):\n    def __init__(self, **kwargs):\n        super().__init__(layers=pipeline(tie(['word.weight']), tie(['word.weight'], logits)), loss_fn=loss_fn, **kwargs)\n"
        "    def _synchronize_tied_weights(self):\n        if self.stage_id == 0:\n            super()._synchronize_tied_weights()\n            super()._synchronize_tied_weights()\n"
        "def layers():\n    return Pipe(num_stages=2, partition_method='uniform')\n",
        "class Pipe(PipelineModule):\n    def __init__(self, **kwargs):\n        super().__init__(layers=pipeline(tie(['word.weight']), tie(['word.weight'], logits)), loss_fn=loss_fn, **kwargs)\n"
        "    def _synchronize_tied_weights(self):\n        super()._synchronize_tied_weights()\n"
        "def layers():\n    return Pipe(num_stages=2, partition_method='uniform')\n",
        "hang",
        paths=("word.weight",),
        name="overridden",
    ),
    Example(
        "TIE501",
        MIXED.replace("ORDER", "found if self.stage_id == 0 else found[::-1]"),
        MIXED.replace("ORDER", "found"),
        "diverge",
        paths=("gain",),
        copies=((0, "gain"), (3, "gain")),
        name="mixed",
    ),
    Example(
        "TIE502",
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11)]\n",
        "def layers():\n    return [LayerSpec(nn.Embedding, 11, 8), LayerSpec(nn.Linear, 8, 11)]\n",
        "crash",
        key=None,
        options={"stages": 3},
        name="stages",
    ),
    Example(
        "TIE502",
        GOOD,
        GOOD,
        "crash",
        key=None,
        options={"ds_config": {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}},
        name="batch",
    ),
    Example(
        "TIE503",
        GOOD,
        GOOD,
        "crash",
        key=None,
        options={"ds_config": {**ZERO1, "zero_optimization": {"stage": 2}}},
        passing={"ds_config": ZERO1},
    ),
    Example(
        "TIE504",
        "def layers():\n    return [tie(['word.weight']), lambda x: x, tie(['word.weight'], logits)]\n",
        GOOD,
        "crash",
        key=None,
        options={"ds_config": BF16},
        passing={"ds_config": BF16},
    ),
)
