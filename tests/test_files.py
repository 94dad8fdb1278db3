"""Files are written whole or not at all, and never over what tiespec did not write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tiespec.errors import OutputError
from tiespec.files import write_text


def ours(text: str) -> bool:
    return text.startswith("ours")


def test_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new"
    write_text(str(path), "ours\n", ours)
    assert path.read_bytes() == b"ours\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~os.umask(os.umask(0o022) or 0o022)


def test_our_own_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours, old")
    path.chmod(0o640)
    write_text(str(path), "ours, new", ours)
    assert path.read_text() == "ours, new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_foreign_file_is_left_alone_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    with pytest.raises(OutputError, match="did not write this file"):
        write_text(str(path), "ours", ours)
    assert path.read_text() == "theirs"
    write_text(str(path), "ours", ours, force=True)
    assert path.read_text() == "ours"


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("ours, old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_text(str(path), "ours, new", ours)
    assert path.read_text() == "ours, old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_folder_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="there is no such folder"):
        write_text(str(tmp_path / "missing" / "file"), "ours", ours)
    with pytest.raises(OutputError, match="this is a folder"):
        write_text(str(tmp_path), "ours", ours, force=True)


def test_a_write_protected_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours")
    path.chmod(0o444)
    with pytest.raises(OutputError, match="write-protected"):
        write_text(str(path), "ours, new", ours)
    assert path.read_text() == "ours"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("ours")
    (tmp_path / "link").symlink_to("real")
    write_text(str(tmp_path / "link"), "ours, new", ours)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "ours, new"
