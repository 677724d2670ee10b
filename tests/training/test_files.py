"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.training.files import write_whole


def test_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Who has the old file open reads the old one to its end: its bytes are never touched."""
    path = tmp_path / "deep" / "x"
    write_whole(path, lambda file: file.write(b"old"))
    with path.open("rb") as old:
        write_whole(path, lambda file: file.write(b"new and longer"))
        assert old.read() == b"old"
    assert path.read_bytes() == b"new and longer"
    assert [entry.name for entry in path.parent.iterdir()] == ["x"]


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_whole(path, lambda file: file.write(b"old"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"x cannot be written \(No space left on device\)"):
        write_whole(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_what_a_killed_process_left_goes_and_what_another_writes_stays(tmp_path: Path) -> None:
    left = tmp_path / "x.partial-00000000"
    left.write_bytes(b"half")

    def write(file) -> None:
        file.write(b"ou")
        file.flush()
        write_whole(tmp_path / "x", lambda other: other.write(b"theirs"))
        file.write(b"rs")

    write_whole(tmp_path / "x", write)
    assert (tmp_path / "x").read_bytes() == b"ours"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_writer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", interrupt)
    assert not list(tmp_path.iterdir())


def test_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_whole(tmp_path / "file" / "x", lambda file: file.write(b"new"))
