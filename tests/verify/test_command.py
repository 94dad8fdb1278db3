"""`tiespec verify` as a user runs it: what it says, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.distributed import free_port
from tests.helpers import ROOT, interruptible, tiespec
from tests.rules.models import GOOD, PARTS

Write = Callable[..., str]
SMALL = "examples/gpt.py:build_layers(vocabulary=64, length=32, hidden=32, heads=4, blocks=4{})"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A variable that every process of the test inherits, so that one that is left behind is seen; and a folder of its own."""
    name = uuid.uuid4().hex
    (tmp_path / "tmp").mkdir()
    yield {"TIESPEC_TEST_MARK": name, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    deadline = time.monotonic() + 5
    while _marked(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _marked(name)


def _marked(name: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                name in (process / "environ").read_text(errors="replace")
                and "Z" not in (process / "stat").read_text().split()[2]
            ):
                found.append(process.name)
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found


def test_the_recipe_hangs_and_is_named(mark: dict[str, str]) -> None:
    done = tiespec("verify", SMALL.format(""), "--timeout", "4", **mark)
    assert done.returncode == 1, done.stderr
    for text in (
        "outcome: hang",
        "rank 0 (stage 0) waits in all_reduce",
        '"position.weight" of key "embed" (layer 0)',
        "rank 1",
    ):
        assert text in done.stdout
    logs = Path(done.stdout.splitlines()[-1].split(": ")[1])
    assert "train_batch" in (logs / "stack0").read_text()


def test_the_recipe_patched(mark: dict[str, str]) -> None:
    done = tiespec("verify", SMALL.format(""), "--patched", "--format", "json", **mark)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["outcome"], found["patched"], found["logs"], len(found["losses"])) == ("ok", True, None, 3)
    assert list(Path(mark["TMPDIR"]).glob("tiespec*")) == []


def test_interrupted(mark: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tiespec", "verify", SMALL.format(""), "--timeout", "60"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    _wait_for_ranks(mark)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (130, ""), stderr


def _wait_for_ranks(mark: dict[str, str], report: str = "report1") -> Path:
    """Wait until the ranks train; the folder they report to."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in Path(mark["TMPDIR"]).glob(f"tiespec-verify-*/{report}"):
            if "built" in file.read_text():
                return file.parent
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


def test_joins_the_job_of_a_launcher(mark: dict[str, str]) -> None:
    target = SMALL.format(", names=['word.weight']")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "-m", "tiespec", "verify", target, "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **mark}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["outcome"] == "ok"


def test_a_job_of_another_size(mark: dict[str, str]) -> None:
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    done = tiespec("verify", SMALL.format(""), **mark, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 stages x 1 data-parallel copies want 2 ranks; the job has 1" in done.stderr


def test_a_port_that_is_taken(mark: dict[str, str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        port = str(listener.getsockname()[1])
        done = tiespec("verify", SMALL.format(""), "--stages", "1", **mark, **variables, MASTER_PORT=port)
    assert (done.returncode, done.stdout) == (2, "")
    assert "could not join the process group" in done.stderr
    assert "MASTER_PORT" in done.stderr


def test_a_rank_that_is_killed(mark: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tiespec", "verify", SMALL.format(""), "--timeout", "60"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for_ranks(mark)
    victim = max(_marked(mark["TIESPEC_TEST_MARK"]), key=int)  # the last one that was started
    os.kill(int(victim), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (2, ""), stderr
    assert "was killed (SIGKILL)" in stderr


FAULTS = {
    "loss": ("def loss_fn(outputs, labels):\n    raise ValueError('no such label')\n", "ValueError: no such label"),
    "disk": (
        "def full(*args, **kwargs):\n    raise OSError(28, 'No space left on device')\n"
        "import os\nif os.environ['WORLD_SIZE'] != '1':\n"
        "    import deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine as engine\n    engine.torch.save = full\n",
        "No space left on device",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_fault_of_ties(name: str, mark: dict[str, str], write: Write) -> None:
    source, text = FAULTS[name]
    done = tiespec("verify", write(PARTS + GOOD + source), **mark)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert text in done.stderr
    assert "help: " in done.stderr


def test_with_optimizer_groups(mark: dict[str, str], write: Write) -> None:
    """Weight decay by the name of a module: it has another one at the other end, and the copies drift apart."""
    groups = (
        "\nEVERYTHING = lambda module: [{'params': list(module.parameters()), 'weight_decay': 0.5}]\n"
        "def by_type(module):\n"
        "    words = [p for m in module.modules() if isinstance(m, Words) for p in m.parameters()]\n"
        "    others = [p for p in module.parameters() if all(p is not w for w in words)]\n"
        "    return [g for g in ({'params': words}, {'params': others, 'weight_decay': 0.5}) if g['params']]\n"
        "class Words(Embedding):\n    pass\n"
    )
    file = write(
        PARTS + groups + "def layers():\n    return pipeline(tie(['word.weight'], None, Words), tie(['word.weight'], logits))\n"
    )
    for function, outcome in (("EVERYTHING", "ok"), ("by_type", "diverge")):
        done = tiespec("verify", f"{file}:layers", "--param-groups", f"{file}:{function}", "--format", "json", **mark)
        assert json.loads(done.stdout)["outcome"] == outcome, done.stderr
    done = tiespec("verify", f"{file}:layers", "--param-groups", f"{file}:nothing", **mark)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing" in done.stderr


def test_wrong_targets(mark: dict[str, str], write: Write) -> None:
    for target, text in (
        ("nowhere.py", "nowhere.py"),
        (write("from torch import nn\nnet = nn.Linear(2, 2)\n", "plain.py") + ":net", "not a sequence of layers"),
        (write("print('hello')\nraise KeyError('x')\n", "broken.py"), "broken.py:2"),
    ):
        done = tiespec("verify", target, **mark)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr


def test_two_jobs_at_one_port_one_after_the_other(mark: dict[str, str], write: Write) -> None:
    """The second job says what the second job saw."""
    port = str(free_port())
    seen = []
    for names in ("['word.weight']", "[]"):
        file = write(PARTS + GOOD.replace('["word.weight"]', names))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tiespec", "verify", f"{file}:layers", "--format", "json"],
                cwd=ROOT,
                env={**os.environ, **mark, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
        seen.append((json.loads(said[0])["outcome"], said[1], ranks[0].returncode, ranks[1].returncode))
    assert seen == [("ok", "", 0, 0), ("diverge", "", 1, 1)]
    assert list(Path(mark["TMPDIR"]).glob("tiespec*")) == []


def test_terminated(mark: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tiespec", "verify", SMALL.format(""), "--timeout", "60"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **mark}, stderr=subprocess.PIPE)
    _wait_for_ranks(mark)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(Path(mark["TMPDIR"]).glob("tiespec*")) == []


def test_a_process_ends_with_its_parent() -> None:
    """Also where the parent is process 1, as in a container."""
    code = "import os; from tiespec.guest import die_with_the_parent; die_with_the_parent(os.getppid()); print('alive', flush=True); die_with_the_parent(1 << 30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.returncode) == ("alive\n", 1)
