"""Can the pipeline be cut and run like this?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiespec.parting import End, Parting
from tiespec.rules.catalogue import Found, Place, Undecided, rule
from tiespec.rules.context import Context, Cut, counts_said, layers_said, shards

Findings = Iterator[Found | Undecided]


@rule("TIE501", "collective-mismatch", "error", "hang")
def collective_mismatch(context: Context) -> Findings:
    """Two ranks of a group do not do the same collectives in the same order.

    Not a rule about what is written: the installed DeepSpeed, or your subclass of its PipelineModule, is constructed for one
    rank of each stage, and what each would communicate is compared, while the pipeline is built and in the tie reduction of a
    step. They wait for each other; or, where both are in one collective, a rank is aborted, or two parameters of one size are
    mixed. It is reported where no other rule explains it: a method that is overridden, a list that depends on the rank, two
    keys that are visited in different orders. `--no-simulate` leaves it out.

    Fails:

        class Pipe(PipelineModule):
            def _synchronize_tied_weights(self):
                if self.stage_id == 0:  # the other ranks of the tie wait for it
                    super()._synchronize_tied_weights()

    Right: every rank of a group calls the same collectives.
    """
    found: dict[str, tuple[Parting, list[int]]] = {}
    for stages, parted in context.partings.items():
        if isinstance(parted, str):
            yield Undecided(f"the ranks of {counts_said((stages,))} could not be simulated: {parted}", "see the other findings")
            continue
        found.setdefault(f"{parted.key} {parted.phase} {parted.ends}", (parted, []))[1].append(stages)
    for parted, counts in found.values():
        call = next((c for c in parted.calls if c is not None and c.key is not None), None)
        yield Found(
            f"with {counts_said(counts)}, {parted}: {_THEN[parted.ends]}",
            "make every rank of the group call the same collectives in the same order",
            key=parted.key,
            layer=call.layer if call else None,
            path=call.path if call else None,
            stages=tuple(counts),
            consequence=parted.ends,
        )


_THEN: dict[End, str] = {
    "hang": "they wait for each other",
    "crash": "a rank is aborted where tensors of other sizes meet",
    "diverge": "two parameters are mixed",
}


@rule("TIE502", "impossible-topology", "error", "crash")
def impossible_topology(context: Context) -> Findings:
    """The layers cannot be cut into that many stages, or a stage stays empty.

    More stages than layers, or a partition by parameters or by type that gives a stage no layer: the rank of that stage has no
    parameters, and building its optimizer or its first step raises ("optimizer got an empty parameter list"). So it does when
    the layers of a stage have no parameter that is trained: functions, or all frozen (seen on 0.19.8). So does a batch size in the DeepSpeed config that is not
    micro batch x accumulation steps x data-parallel copies (`--dp`).

    Fails:

        PipelineModule(layers=[a, b, c], num_stages=4)

    Right: at most as many stages as layers; `partition_method="uniform"` never leaves a stage empty then.
    """
    for stages, why in context.impossible:
        yield Found(
            f"{len(context.pipeline.layers)} layers cannot be cut into {stages} stages: {why}",
            f"use at most {len(context.pipeline.layers)} stages",
            stages=(stages,),
        )
    yield from _batch(context)
    for cut in context.cuts:
        empty = [stage for stage in range(cut.stages) if cut.parts[stage] == cut.parts[stage + 1]]
        if empty:
            yield Found(
                f"with {counts_said((cut.stages,))}, stage {empty[0]} gets no layer (partition {context.pipeline.partition})",
                'use fewer stages, or partition_method="uniform"',
                stages=(cut.stages,),
            )
    yield from _untrained(context)


def _untrained(context: Context) -> Findings:
    """Stages that have layers, and nothing that an optimizer could train; of the cuts that were asked for."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for cut in context.cuts if context.settings.stages_given else ():
        for stage in range(cut.stages):
            held = tuple(range(cut.parts[stage], cut.parts[stage + 1]))
            if held and not _trained(context, held):
                found.setdefault(held, []).append((cut.stages, stage))
    for held, where in found.items():
        counts = tuple(stages for stages, _ in where)
        yield Found(
            f"with {counts_said(counts)}, stage {where[0][1]} ({layers_said(held)}) has no parameter that is trained: its rank has "
            "nothing to give an optimizer, and making one raises",
            "choose a cut that puts a layer with trainable parameters into the stage",
            layer=held[0],
            places=tuple(Place(i, "no trainable parameter") for i in held),
            stages=counts,
        )


def _trained(context: Context, held: Iterable[int]) -> list[int]:
    """The layers that have a trainable parameter, or might have: what does not build is unknown."""
    layers = context.pipeline.layers
    return [i for i in held if layers[i].unbuilt is not None or any(True for _ in layers[i].trainable())]


def _batch(context: Context) -> Findings:
    config, copies = context.settings.config, context.settings.data_parallel
    if config.train_batch and config.micro_batch and config.micro_batches:
        if config.train_batch != config.micro_batch * config.micro_batches * copies:
            yield Found(
                f"train_batch_size {config.train_batch} is not {config.micro_batch} (micro batch) x {config.micro_batches} "
                f"(accumulation steps) x {copies} (data parallel): DeepSpeed raises when the engine is made",
                "mend the DeepSpeed config, or pass the --dp of the run",
            )
    elif config.train_batch and config.train_batch % ((config.micro_batch or config.micro_batches or 1) * copies):
        yield Found(
            f"train_batch_size {config.train_batch} cannot be divided among {copies} data-parallel copies",
            "mend the DeepSpeed config, or pass the --dp of the run",
        )


@rule("TIE503", "zero-stage", "error", "crash")
def zero_stage(context: Context) -> Findings:
    """ZeRO-2 or ZeRO-3 with a pipeline.

    DeepSpeed asserts it away when the engine is made: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism".

    Fails:

        {"zero_optimization": {"stage": 2}}

    Right:

        {"zero_optimization": {"stage": 1}}
    """
    if context.settings.config.zero_stage >= 2:
        yield Found(
            f"ZeRO-{context.settings.config.zero_stage} does not go with a pipeline: DeepSpeed raises when the engine is made",
            'write "stage": 1 into zero_optimization',
            stages=context.parallel(),
        )


@rule("TIE504", "tie-only-stage", "error", "crash")
def tie_only_stage(context: Context) -> Findings:
    """A stage whose only trainable parameters are copies of a tie that begins in another stage.

    DeepSpeed leaves the copies of a tie out of the gradient norm. A rank that has nothing else has no norm to take: where its
    BF16_Optimizer runs (bf16 without ZeRO; bf16 with ZeRO-1 and `data_types.grad_accum_dtype: fp32`) the first step raises
    "stack expects a non-empty TensorList" (seen on 0.19.8). In fp32, and in bf16 with plain ZeRO-1, it trains.

    Fails, in bf16 and with a last stage that is the head alone:

        layers = [TiedLayerSpec("embed", ...), *blocks, TiedLayerSpec("embed", ..., forward_fn=logits)]

    Right: a number of stages, or a partition, that puts a block beside the head.
    """
    if not context.settings.config.uses_bf16_optimizer:
        return
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for cut in context.cuts:
        for stage in range(cut.stages):
            held = tuple(range(cut.parts[stage], cut.parts[stage + 1]))
            if held and _only_copies(context, cut, stage):
                found.setdefault(held, []).append((cut.stages, stage))
    for held, where in found.items():
        counts = tuple(stages for stages, _ in where)
        yield Found(
            f"with {counts_said(counts)}, stage {where[0][1]} trains nothing but copies of a tie that begins in an earlier stage: "
            "DeepSpeed's BF16_Optimizer has no gradient norm to take there, and the first step raises",
            "choose a cut that puts another layer into the stage",
            layer=held[0],
            places=tuple(Place(i, f"in stage {where[0][1]} with {counts_said(counts[:1])}") for i in held),
            stages=counts,
        )


def _only_copies(context: Context, cut: Cut, stage: int) -> bool:
    held = range(cut.parts[stage], cut.parts[stage + 1])
    trained = _trained(context, held)
    copies = {
        i for tie in context.ties for shard in shards(tie, cut)[1:] if shard.stage == stage for i in shard.layers
    }  # fmt: skip
    return bool(trained) and set(trained) <= copies
