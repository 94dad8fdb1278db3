"""The command line: options, exit statuses, pure stdout, files."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import HEAD, ROOT, interruptible, tiespec
from tiespec.guest import DEBUG_HINT

Write = Callable[..., str]
GPT = "examples/gpt.py"

PRINTING = (
    "import os, sys\nprint('hello')\nos.write(1, b'raw\\n')\nos.system('echo from a child')\n"
    + HEAD
    + "from deepspeed.utils import logger\nlogger.warning('DeepSpeed speaks')  # to stdout, as it does without an accelerator\n"
    + "def layers():\n    print('building')\n    return [TiedLayerSpec('e', nn.Linear, 4, 4), TiedLayerSpec('e', nn.Linear, 4, 4)]\n"
)


def test_the_set_of_options_is_this() -> None:
    shown = tiespec("generate", "--help", COLUMNS="200").stdout
    assert re.findall(r"^\s+(?:-o, )?(--[\w-]+)", shown, re.MULTILINE) == [
        "--min-numel", "--max-numel", "--include", "--exclude", "--input", "--stages", "--format", "--output", "--check",
        "--force", "--color", "--setup", "--timeout", "--debug", "--help",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("generate", "--help")])
def test_help_and_version_import_neither_torch_nor_deepspeed(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom tiespec.cli import main\nsys.argv = ['tiespec', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print({'torch', 'deepspeed', 'numpy', 'transformers'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert done.stderr == "set()\n"
    assert "tiespec" in done.stdout


def test_import_tiespec_imports_neither_torch_nor_deepspeed() -> None:
    code = "import sys, tiespec; dir(tiespec); tiespec.load; print({'torch', 'deepspeed'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "set()\n"


def test_json_is_pure_for_a_file_that_prints(write: Write) -> None:
    done = tiespec("generate", write(PRINTING), "--format", "json")
    assert done.returncode == 0, done.stderr
    read = subprocess.run([sys.executable, "-m", "json.tool"], input=done.stdout, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    assert json.loads(done.stdout)["ties"][0]["key"] == "e"
    for text in ("hello", "raw", "from a child", "building", "DeepSpeed speaks"):
        assert text in done.stderr


def test_deepspeed_that_does_not_import_is_no_fault_of_ours() -> None:
    done = tiespec("generate", GPT, DS_ACCELERATOR="abacus")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ValueError: DS_ACCELERATOR must be one of")
    assert "internal error" not in done.stderr


def test_python_is_pure_and_valid(write: Write) -> None:
    done = tiespec("generate", write(PRINTING), "--format", "python")
    namespace: dict[str, object] = {}
    exec(done.stdout, namespace)
    assert namespace["TIED_WEIGHT_ATTR"] == {"e": ["weight", "bias"]}


def test_names_from_user_code_are_literals(write: Write) -> None:
    key = "'];import os#\\n\""
    source = HEAD + f"layers = [TiedLayerSpec({key!r}, nn.Linear, 4, 4), TiedLayerSpec({key!r}, nn.Linear, 4, 4)]"
    done = tiespec("generate", write(source), "--format", "python")
    namespace: dict[str, object] = {}
    exec(done.stdout, namespace)
    assert namespace["TIED_WEIGHT_ATTR"] == {key: ["weight", "bias"]}


def test_text_says_what_is_left_out_and_why() -> None:
    done = tiespec("generate", GPT)
    assert done.returncode == 0
    assert done.stdout == (
        "examples/gpt.py:build_layers: 14 layers, 1 tie (sample input: example_inputs())\n\n"
        "embed  layers 0, 13  (gpt.Embedding)\n"
        '  tied_weight_attr = ["word.weight"]\n'
        "  word.weight      50304x1024  float32  tied\n"
        "  position.weight  1024x1024   float32  left out: unused at layer 13\n"
        "  norm.weight      1024        float32  left out: unused at layer 13\n"
        "  norm.bias        1024        float32  left out: unused at layer 13\n"
    )
    assert done.stderr == ""


def test_warnings_beside_a_machine_format_go_to_stderr(write: Write) -> None:
    source = HEAD + "layers = [TiedLayerSpec('e', nn.Linear, 4, 4)]"
    done = tiespec("generate", write(source), "--format", "json")
    assert "warning: key e: only layer 0 has this key" in done.stderr


def test_the_output_is_the_same_under_ten_hash_seeds() -> None:
    file = f"{ROOT}/tests/cases/subclass_alias_property/model.py"
    code = (
        "import sys\nfrom tiespec.host import run_job\nfrom tiespec.output import rendered\n"
        "options = {'target': sys.argv[1], 'setup': None, 'input': [], 'stages': None, 'min_numel': 1, 'max_numel': None,"
        " 'include': [], 'exclude': []}\n"
        "result = run_job('generate', options, 60, lambda data: None)\n"
        "for format in ('text', 'json', 'python'):\n    print(rendered(result, format, 100, False))\n"
    )
    outputs = set()
    for seed in range(10):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_write_check_and_drift(tmp_path: Path, write: Write) -> None:
    spec = str(tmp_path / "tiespec.json")
    assert tiespec("generate", f"{ROOT}/{GPT}", "-o", spec).returncode == 0
    before = Path(spec).read_bytes()
    same = tiespec("generate", f"{ROOT}/{GPT}", "--check", cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "tiespec.json is up to date: 1 tie\n")
    drift = tiespec("generate", f"{ROOT}/{GPT}", "--min-numel", "2", "--check", "-o", spec)
    assert drift.returncode == 1
    assert "min_numel was 1, is 2" in drift.stdout
    assert "tiespec generate" in drift.stdout
    assert Path(spec).read_bytes() == before
    missing = tiespec("generate", f"{ROOT}/{GPT}", "--check", "-o", str(tmp_path / "none.json"))
    assert missing.returncode == 2
    assert "none.json" in missing.stderr


def test_check_takes_the_recorded_filters(tmp_path: Path) -> None:
    spec = str(tmp_path / "tiespec.json")
    assert tiespec("generate", GPT, "--min-numel", "2", "--exclude", "norm*", "-o", spec).returncode == 0
    assert tiespec("generate", GPT, "--check", "-o", spec).returncode == 0


def test_check_of_a_python_file(tmp_path: Path) -> None:
    file = str(tmp_path / "ties.py")
    assert tiespec("generate", GPT, "-o", file).returncode == 0
    assert tiespec("generate", GPT, "-o", file, "--check").returncode == 0
    Path(file).write_text(Path(file).read_text().replace("word", "w"))
    assert tiespec("generate", GPT, "-o", file, "--check").returncode == 1


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    for name in ("notes.txt", "data.json", "code.py"):
        path = tmp_path / name
        path.write_text("{}")
        done = tiespec("generate", GPT, "-o", str(path))
        assert done.returncode == 2
        assert "--force" in done.stderr
        assert path.read_text() == "{}"
    assert tiespec("generate", GPT, "-o", str(path), "--force").returncode == 0
    for name in ("code.json", "code.txt", "code.py"):  # each of our formats is known as ours
        assert tiespec("generate", GPT, "-o", str(tmp_path / name)).returncode == 0
        assert tiespec("generate", GPT, "-o", str(tmp_path / name), "--format", "json").returncode == 0


USAGE = {
    ("generate", "examples/gtp.py"): "did you mean examples/gpt.py?",
    ("generate", "examples"): "examples is a folder",
    ("generate", GPT, "--frmat", "json"): "No such option",
    ("generate", GPT, "--format", "yaml"): "yaml",
    ("generate",): "TARGET",
    ("generat",): "No such command",
    ("generate", GPT, "--input", "int64"): "cannot read --input",
    ("generate", GPT, "-o", "ties.yaml"): "no format has the ending .yaml",
    ("generate", GPT, "--min-numel", "5", "--max-numel", "4"): "--max-numel 4 is below",
    ("generate", GPT, "--check", "-o", "none.json"): "cannot read the spec file",
    ("generate", GPT, "--stages", "99"): "cannot cut 14 layers into 99 stages",
    ("generate", GPT, "--setup", "nowhere:f"): "there is no module 'nowhere'",
}


@pytest.mark.parametrize("arguments", USAGE)
def test_what_cannot_be_done_is_exit_2(arguments: tuple[str, ...]) -> None:
    done = tiespec(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert USAGE[arguments] in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(write: Write) -> None:
    file = write(HEAD + "def layers():\n    raise ValueError('no luck')\n    return [LayerSpec]")
    plain, debug = tiespec("generate", f"{file}:layers"), tiespec("generate", f"{file}:layers", "--debug")
    assert plain.stderr == f"error: {file}:7: ValueError: no luck (while calling layers)\nhelp: {DEBUG_HINT}\n"
    assert "Traceback" in debug.stderr
    assert (plain.returncode, debug.returncode) == (2, 2)


def test_interrupt(write: Write) -> None:
    file = write("import time\nprint('ready', flush=True)\ntime.sleep(60)\n" + HEAD)
    command = [sys.executable, "-m", "tiespec", "generate", file]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")
    assert not _running(file)


def _running(text: str) -> list[str]:
    """Command lines of processes that mention a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text()
        except OSError:
            continue
        if text in line and folder.name != str(os.getpid()):
            found.append(line)
    return found


def test_a_closed_pipe_is_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tiespec generate {GPT} --format json | true", shell=True, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_an_output_that_knows_ascii_only(write: Write) -> None:
    file = write(HEAD + "layers = [nn.Linear(2, 2), nn.Linear(2, 2)]", "modèle.py")
    done = tiespec("check", file, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"mod\u00e8le.py" in done.stdout
    told = tiespec("check", file, "--format", "json", PYTHONIOENCODING="ascii")
    assert json.loads(told.stdout)["target"].startswith(file)
    wrong = tiespec("check", file.replace("modèle", "modèles"), PYTHONIOENCODING="ascii")
    assert wrong.returncode == 2
    assert r"mod\u00e8les.py" in wrong.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_the_spinner_is_for_terminals_only(terminal: bool, write: Write) -> None:
    file = write("import time\ntime.sleep(2)\n" + HEAD + "layers = [nn.Linear(2, 2)]")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "tiespec", "generate", file, "--format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # a terminal whose other side is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert process.communicate(timeout=20)[0].startswith(b"{")
    assert (b"importing" in seen) == terminal
    assert (seen == b"") != terminal


def test_the_large_example_takes_seconds() -> None:
    started = time.monotonic()
    done = tiespec("generate", "examples/large.py")
    assert "word.weight  128256x16384" in done.stdout
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("asked", "environment", "colored"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_written_when_asked_for(asked: str, environment: dict[str, str], colored: bool) -> None:
    assert (
        "\x1b[" in tiespec("generate", GPT, "--color", asked, **{"NO_COLOR": "", "FORCE_COLOR": "", **environment}).stdout
    ) is colored


def test_the_shell_completes_commands() -> None:
    script = os.path.join(os.path.dirname(sys.executable), "tiespec")
    asked = {**os.environ, "_TIESPEC_COMPLETE": "complete_bash", "COMP_WORDS": "tiespec ch", "COMP_CWORD": "1"}
    done = subprocess.run([script], capture_output=True, text=True, env=asked)
    assert done.stdout.split() == ["check"]
