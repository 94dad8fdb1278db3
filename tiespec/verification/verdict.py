"""Plan, run, compare: the whole of a verification, in a process that never runs the user's code itself."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

from tiespec.dsconfig import parse_ds_config
from tiespec.errors import GuestError, TargetError, TiespecError, UsageError, error_of, fields_of
from tiespec.verification.compare import compare, outcome_of
from tiespec.verification.launch import Ended, free_port, run_alone, run_ranks
from tiespec.verification.outcome import Verification, Waiting
from tiespec.verification.prepare import prepare
from tiespec.verification.rank import JOINED
from tiespec.verification.reference import run_reference
from tiespec.verification.task import Plan, Task, read_plan
from tiespec.verification.watch import sits_in

POLL_SECONDS = 0.1
ONE_ORDER = (
    "what happens depends on the order of a set, which is the same in all ranks here, since they are forked from one process; "
    "start verify under torchrun, and every rank has its own"
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """How it is run.

    Args:
        timeout (float): seconds without news from the ranks after which the run hangs.
        load_timeout (float): seconds that loading the target may take.
        joined (dict[str, str] | None): the launcher's variables of this rank, where a launcher has started it.
    """

    timeout: float
    load_timeout: float
    joined: dict[str, str] | None = None


def verify_task(task: Task, job: Job, progress: Progress) -> Verification:
    """Run the target for real and compare it with one process.

    In a job that a launcher has started, every rank calls this; rank 0 compares, and the others wait for what it says.

    Raises:
        UsageError: stages and data-parallel copies do not make the size of the job, or no sample input is known.
        TargetError: the user's code failed.
        GuestError: a process ended without an answer.
    """
    if job.joined is not None and job.joined["RANK"] != "0":
        return _as_another_rank(task, job, progress)
    try:
        found = _verify(task, job, progress)
    except TiespecError as error:
        _tell(task, "failed", fields_of(error))
        raise
    _tell(task, "verdict", found.model_dump(mode="json"))
    return found


def _verify(task: Task, job: Job, progress: Progress) -> Verification:
    progress("loading the target")
    run_alone(prepare_quietly, task, job.load_timeout)
    plan = read_plan(task.folder)
    if plan.by_order and job.joined is None:
        plan = replace(plan, notes=[*plan.notes, ONE_ORDER])
    world_size = plan.stages * task.data_parallel
    _check_size(job, plan, task, world_size)
    _tell(task, "go", world_size)
    ended = run_ranks(task, _places(job, world_size), world_size, job.timeout, progress)
    return _judged(task, job, plan, ended, progress)


def prepare_quietly(task: Task) -> None:
    """``prepare`` in a process of its own."""
    prepare(task, lambda phase: None)


def _check_size(job: Job, plan: Plan, task: Task, world_size: int) -> None:
    if job.joined is not None and int(job.joined["WORLD_SIZE"]) != world_size:
        wanted = f"{plan.stages} stages x {task.data_parallel} data-parallel copies"
        what = f"{wanted} want {world_size} ranks; the job has {job.joined['WORLD_SIZE']}"
        raise UsageError(what, "pass --stages and --dp, or start as many processes")


def _places(job: Job, world_size: int) -> dict[int, dict[str, str]]:
    """The environment of each rank that is started here."""
    if job.joined is not None:
        return {int(job.joined["RANK"]): {**job.joined, JOINED: "1"}}
    common = {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)}


def _as_another_rank(task: Task, job: Job, progress: Progress) -> Verification:
    assert job.joined is not None
    world_size = int(job.joined["WORLD_SIZE"])
    _told(task, "go", job.load_timeout)
    run_ranks(task, _places(job, world_size), world_size, job.timeout, progress)
    return Verification.model_validate(_told(task, "verdict", job.load_timeout + job.timeout))


def _tell(task: Task, name: str, value: Any) -> None:
    file = Path(task.folder, f"{name}.json")
    file.with_suffix(".new").write_text(json.dumps(value))
    file.with_suffix(".new").replace(file)


def _told(task: Task, name: str, timeout: float) -> Any:
    """What rank 0 has written.

    Raises:
        TiespecError: rank 0 failed, or says nothing.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for file in (Path(task.folder, f"{name}.json"), Path(task.folder, "failed.json")):
            if file.exists():
                said = json.loads(file.read_text())
                if file.stem == "failed":
                    raise error_of(said)
                return said
        time.sleep(POLL_SECONDS)
    raise GuestError(f"rank 0 said nothing for {timeout:g} s", "look at its output; all ranks must be on one machine")


def _judged(task: Task, job: Job, plan: Plan, ended: Ended, progress: Progress) -> Verification:
    made = partial(_made, task, plan, ended)
    late = [rank for rank in ended.reports if ended.phase(rank) == "starting"]
    if ended.hung and late:
        raise GuestError(f"rank {late[0]} did not join the process group", "is the machine overloaded, or a rank not started?")
    if ended.hung:
        return made("hang", waiting=_waiting(task, ended))
    if any(how in ABORTED for how in ended.gone.values()):
        return made("crash", errors={rank: f"{how}: {_last_line(ended, rank)}" for rank, how in ended.gone.items()})
    if ended.gone:
        rank, how = next(iter(ended.gone.items()))
        log = ended.logs.get(rank)
        raise GuestError(f"rank {rank} {how} (while in {ended.phase(rank)})", f"its output is in {log}" if log else "")
    errors = ended.errors()
    if errors and all(error["refused"] for error in errors.values()):
        return made("refused")
    if errors:
        _no_fault_of_ties(task, job, ended, errors)
        return made("crash")
    progress("training in one process")
    run_alone(run_reference, task, job.load_timeout)
    low = parse_ds_config(task.config, "the DeepSpeed config").precision != "fp32"
    compared = compare(task.folder, plan, ended.losses(), low)
    return made(
        outcome_of(compared, low),
        reference_losses=compared.right,
        copies=compared.copies,
        reference=compared.reference,
        lost=compared.lost,
        overwritten=compared.overwritten,
        untrained=compared.untrained,
    )


ABORTED = tuple(f"was killed ({name})" for name in ("SIGABRT", "SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL"))
"""gloo aborts a process in which tensors of different sizes meet; what comes from outside is SIGKILL or SIGTERM."""


def _last_line(ended: Ended, rank: int) -> str:
    log = Path(ended.logs.get(rank, ""))
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    said = [line.strip() for line in lines if "what()" in line or "Error" in line]
    return (said or lines or ["no word"])[-1]


def _no_fault_of_ties(task: Task, job: Job, ended: Ended, errors: dict[int, Any]) -> None:
    """Raise what has nothing to do with ties: no port, a full disk, user code that fails in one process, too."""
    rank, error = next(iter(errors.items()))
    phase = ended.phase(rank)
    if phase == "starting":
        raise GuestError(f"rank {rank} could not join the process group: {error['text']}", "is MASTER_PORT free?")
    if phase == "saving" or error["system"]:
        raise GuestError(f"rank {rank}: {error['text']} (while {phase})", f"the files are in {task.folder}; is the disk full?")
    if error["file"] is not None:
        try:
            run_alone(run_reference, task, job.load_timeout)
        except TiespecError as failed:
            raise TargetError(error["text"], "it fails in one process, too", error["file"], error["line"]) from failed


def _waiting(task: Task, ended: Ended) -> list[Waiting]:
    found = []
    for rank in ended.reports:
        at = sits_in(str(Path(task.folder, f"now{rank}"))) or {}
        stack = Path(task.folder, "logs", f"stack{rank}")
        found.append(Waiting(rank=rank, phase=ended.phase(rank), stack=str(stack) if stack.exists() else None, **at))
    return found


def _made(task: Task, plan: Plan, ended: Ended, outcome: Any, **found: Any) -> Verification:
    return Verification(
        target=task.target,
        deepspeed=importlib.metadata.version("deepspeed"),
        torch=importlib.metadata.version("torch").partition("+")[0],
        patched=task.patched,
        stages=plan.stages,
        data_parallel=task.data_parallel,
        steps=task.steps,
        input=plan.source,
        outcome=outcome,
        losses=ended.losses(),
        notes=plan.notes,
        logs=str(Path(task.folder, "logs")) if outcome in ("hang", "crash") else None,
        **{"errors": {rank: error["text"] for rank, error in ended.errors().items()}, **found},
    )
