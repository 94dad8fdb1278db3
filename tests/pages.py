"""Pages of the documentation whose commands are run.

``<!-- file: NAME -->`` before a block: the block is that file. A ``console`` block holds commands after ``$``, each followed by
what it prints on stdout. The commands of a page run one after the other in one folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers import ROOT

PAGES = ("tutorial.md", "library.md", "show.md")
_BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)```", re.DOTALL)
TEMPORARY = re.compile(r"\S*tiespec-verify-\w+")
PATH = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"


def rendered(page: str, folder: Path) -> str:
    """The page with what its commands print when they are run in an empty folder, but for ``examples/``."""
    shutil.copytree(ROOT / "examples", folder / "examples")

    def block(match: re.Match[str]) -> str:
        if match["file"]:
            (folder / match["file"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / match["file"]).write_text(match["body"])
        if match["kind"] != "console":
            return match[0]
        commands = re.findall(r"^\$ (.*(?:\\\n.*)*)$", match["body"], re.MULTILINE)
        return "```console\n" + "".join(f"$ {command}\n{printed(command, folder)}" for command in commands) + "```"

    return _BLOCK.sub(block, page)


def printed(command: str, folder: Path) -> str:
    """What a command prints on stdout; the name of a temporary folder is made the same in every run."""
    environment = {**os.environ, "PATH": PATH, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "internal error" not in done.stderr, done.stderr
    output = TEMPORARY.sub("/tmp/tiespec-verify-1a2b3c4d", done.stdout)
    return output if not output or output.endswith("\n") else f"{output}\n"
