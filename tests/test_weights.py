"""JSON and safetensors files, and folders that appear whole or not at all."""

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.folders import new_folder, require_free
from redrafter_mlx.weights import (
    INDEX_FILE,
    MAX_JSON_BYTES,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)

TENSORS = {
    "a": mx.arange(6, dtype=mx.float32).reshape(2, 3),
    "b": mx.array([0.1, -2.0]).astype(mx.bfloat16),
    "c": mx.array(7, dtype=mx.int32),
    "d": mx.zeros((0, 4), dtype=mx.float16),
    "e": mx.array([[1, 2**32 - 1]], dtype=mx.uint32),
}


def refusal(path: Path) -> str:
    """Return the sentence with which ``load_tensors`` refuses a path."""
    with pytest.raises(CheckpointError) as refused:
        load_tensors(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def safetensors(header: Any, data: bytes = b"\0" * 64) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def two(x: list[int], y: list[int]) -> bytes:
    """Return a file of 48 bytes of data whose tensors x and y claim to lie at these bytes."""
    tensors = entry(shape=[(x[1] - x[0]) // 4], offsets=x)
    tensors["y"] = entry(shape=[(y[1] - y[0]) // 4], offsets=y)["x"]
    return safetensors(tensors, b"\0" * 48)


def test_tensors_come_back_as_they_were_saved(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model.safetensors", TENSORS)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        loaded = load_tensors(path)
        assert loaded.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
            assert mx.array_equal(loaded[name], tensor)


def test_the_file_says_that_it_is_mlxs(tmp_path: Path) -> None:
    save_tensors(tmp_path / "x.safetensors", TENSORS)
    loaded = mx.load(str(tmp_path / "x.safetensors"), return_metadata=True)
    assert isinstance(loaded, tuple)
    assert loaded[1] == {"format": "mlx"}


def test_the_index_alone_says_which_files_are_read(tmp_path: Path) -> None:
    """A shard that an older conversion left behind is not mixed in (mlx-lm#934)."""
    for number, name in enumerate(("a", "b", "c")):
        save_tensors(tmp_path / f"model-{number}.safetensors", {name: TENSORS[name]})
    index = {"a": "model-0.safetensors", "b": "model-1.safetensors"}
    write_json(tmp_path / INDEX_FILE, {"metadata": {}, "weight_map": index})
    assert load_tensors(tmp_path).keys() == {"a", "b"}
    (tmp_path / INDEX_FILE).unlink()
    assert load_tensors(tmp_path).keys() == {"a", "b", "c"}


def test_without_an_index_a_name_may_be_there_once(tmp_path: Path) -> None:
    for number in (1, 2):
        save_tensors(tmp_path / f"model-{number}.safetensors", {"a": TENSORS["a"]})
    assert "'a' is twice in" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"a": "model-9.safetensors"},
            "lacks model-9.safetensors, which model.safetensors.index.json names; get it again.",
        ),
        ({"a": "model.safetensors", "z": "model.safetensors"}, "'z' is in model.safetensors.index"),
        ({"a": "../model.safetensors"}, "names the file '../model.safetensors'"),
        ({"a": "/etc/passwd"}, "names the file '/etc/passwd'"),
        ({"a": 3}, "names the file 3"),
        ({}, "has no weight_map"),
        (["a"], "has no weight_map"),
    ],
)
def test_an_index_that_promises_too_much_is_refused(
    tmp_path: Path, index: Any, message: str
) -> None:
    save_tensors(tmp_path / "model.safetensors", {"a": TENSORS["a"]})
    write_json(tmp_path / INDEX_FILE, {"weight_map": index})
    assert message in refusal(tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors(path, TENSORS)
    whole = path.read_bytes()
    for cut in (*range(0, len(whole), 37), len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert "truncated or damaged" in refusal(path)


HOSTILE = {
    "header length": (struct.pack("<Q", 2**60) + b"{}", "a header of 1152921504606846976 bytes"),
    "no header": (struct.pack("<Q", 0) + b"{}", "a header of 0 bytes"),
    "not JSON": (safetensors(b"{'a': 1}"), "is not valid JSON"),
    "not UTF-8": (safetensors(b'{"\xff\xfe": 1}'), "is not valid JSON"),
    "UTF-16": (safetensors('{"a": 1}'.encode("utf-16")), "is not valid JSON"),
    "deep": (safetensors(b'{"a":' + b"[" * 200_000), "is not valid JSON"),
    "a list": (safetensors([1]), "is not a JSON object"),
    "no entry": (safetensors({"x": 5}), "stores 'x' as None"),
    "dtype": (safetensors(entry(dtype="F8_E4M3")), "stores 'x' as 'F8_E4M3'; convert it to F16"),
    "dtype a list": (safetensors(entry(dtype=["F32"])), "stores 'x' as ['F32']"),
    "shape a number": (safetensors(entry(shape=6)), "'x' of shape 6"),
    "shape negative": (safetensors(entry(shape=[-2, -3])), "'x' of shape [-2, -3]"),
    "shape true": (safetensors(entry(shape=[True, 6])), "'x' of shape [True, 6]"),
    "shape a float": (safetensors(entry(shape=[6.0])), "'x' of shape [6.0]"),
    "shape NaN": (safetensors(entry(shape=[float("nan")])), "'x' of shape [nan]"),
    "shape 2^31": (safetensors(entry(shape=[2**31, 0])), "'x' of shape [2147483648, 0]"),
    "shape overflows": (
        safetensors(entry(shape=[2**30] * 8, offsets=[0, 0])),
        "'x' of shape [1073",
    ),
    "nine sizes": (safetensors(entry(shape=[1] * 9, offsets=[0, 4])), "'x' of shape [1, 1, 1"),
    "shape endless": (safetensors(entry(shape=[2**30] * 99_999)), "'x' of shape [1073741824, 1073"),
    "offset past the end": (safetensors(entry(offsets=[44, 68])), "at bytes [44, 68] of 64"),
    "offsets swapped": (safetensors(entry(offsets=[24, 0])), "at bytes [24, 0]"),
    "offset negative": (safetensors(entry(offsets=[-24, 0])), "at bytes [-24, 0]"),
    "offset too few": (safetensors(entry(offsets=[24])), "at bytes [24]"),
    "offsets of another size": (safetensors(entry(offsets=[0, 23])), "at bytes [0, 23]"),
    "overlap": (two([0, 24], [20, 44]), "'y' at bytes [20, 44], and byte 24 comes next"),
    "same bytes": (two([0, 24], [0, 24]), "'y' at bytes [0, 24], and byte 24 comes next"),
    "gap": (two([24, 48], [0, 20]), "'x' at bytes [24, 48], and byte 20 comes next"),
    "gap before": (two([4, 28], [28, 48]), "'x' at bytes [4, 28], and byte 0 comes next"),
    "bytes behind": (two([0, 24], [24, 44]), "44 bytes of tensors, it has 48"),
    "no tensors": (safetensors({}), "0 bytes of tensors, it has 64"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path: Path, name: str) -> None:
    data, message = HOSTILE[name]
    (tmp_path / "x.safetensors").write_bytes(data)
    assert message in refusal(tmp_path / "x.safetensors")


@pytest.mark.parametrize("metadata", [5, ["a"], {"a": 1}, {"a": [[[[]]]]}])
def test_odd_metadata_never_end_in_another_error(tmp_path: Path, metadata: Any) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({"__metadata__": metadata, **entry()}, b"\0" * 24))
    try:
        assert load_tensors(path)["x"].shape == (2, 3)
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_flipped_bytes_never_end_in_another_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_tensors(path, TENSORS)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    num_refused = 0
    for _ in range(300):
        data = bytearray(whole)
        data[int(rng.integers(0, len(whole)))] = int(rng.integers(0, 256))
        path.write_bytes(bytes(data))
        try:
            mx.eval(load_tensors(path))
        except CheckpointError as error:
            assert "\n" not in str(error)
            num_refused += 1
    assert 100 < num_refused < 300


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "x.safetensors")
    assert "holds no model*.safetensors" in refusal(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_tensors(tmp_path / "no" / "x.safetensors", TENSORS)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_json(tmp_path / "no" / "x.json", {})


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    values = {"b": [1, 2.5, None], "a": {"ä": "<|日本|>\n"}}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == values
    assert list(read_json(tmp_path / "x.json")) == ["b", "a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"a": ', "is not valid JSON"),
        (b'{"a": "\xff"}', "is not valid JSON"),
        (b"[" * 200_000, "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"3", "is not a JSON object"),
    ],
)
def test_a_broken_json_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_json(tmp_path / "x.json")
    assert "\n" not in str(refused.value) and "x.json" in str(refused.value)


def test_a_json_file_that_is_missing_a_folder_or_too_long_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "x.json", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_json(path)
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"is {MAX_JSON_BYTES + 1} bytes long"):
        read_json(tmp_path / "long.json")


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_folder_appears_when_it_is_whole(tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "a" / "out"
    if exists:
        out.mkdir(parents=True)
    with new_folder(out) as folder:
        write_json(folder / "x.json", {})
        assert not (out / "x.json").exists()
        assert folder.parent == out.parent and folder.name.startswith("out.partial-")
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert read_json(out / "x.json") == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_new_folder_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "out") as folder:
        write_json(folder / "x.json", {})
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_free_where_a_new_one_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    (tmp_path / "file").touch()
    for name in ("missing", "empty", "missing/deeper"):
        require_free(tmp_path / name)
    for name in ("full", "file"):
        with pytest.raises(CheckpointError, match=f"{name} exists and is not an empty folder"):
            require_free(tmp_path / name)


def test_a_new_folder_replaces_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"mine": True})
    (tmp_path / "full").mkdir()
    write_json(tmp_path / "full" / "x.json", {"mine": True})
    for name in ("file", "full", "file/below"):
        with pytest.raises(CheckpointError) as refused, new_folder(tmp_path / name):
            pytest.fail("the block must not run")
        assert name.split("/")[0] in str(refused.value)
    assert read_json(tmp_path / "file") == read_json(tmp_path / "full" / "x.json")
    assert len(list(tmp_path.iterdir())) == 2


def test_of_two_who_make_one_folder_the_first_wins(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="not empty"), new_folder(out) as slow:
        write_json(slow / "x.json", {"who": "slow"})
        with new_folder(out) as quick:
            write_json(quick / "x.json", {"who": "quick"})
    assert read_json(out / "x.json") == {"who": "quick"}
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_process_left_is_not_the_folder(tmp_path: Path) -> None:
    """SIGKILL inside the block: no folder of that name, and the next try works."""
    out = tmp_path / "out"
    code = (
        "import os, signal, sys\n"
        "from redrafter_mlx.folders import new_folder\n"
        "from redrafter_mlx.weights import write_json\n"
        "with new_folder(sys.argv[1]) as folder:\n"
        "    write_json(folder / 'x.json', {})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(out)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1
    with new_folder(out) as folder:
        write_json(folder / "x.json", {"whole": True})
    assert read_json(out / "x.json") == {"whole": True}


def test_tensors_may_lie_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(two([24, 48], [0, 24]))
    assert load_tensors(tmp_path / "x.safetensors").keys() == {"x", "y"}


def test_a_new_folder_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, then the folder that names it, then the rename."""
    out = tmp_path / "out"
    steps: list[str] = []
    names: dict[int, str] = {}

    def note(handle: int) -> None:
        steps.append(names[os.fstat(handle).st_ino])
        assert not out.exists()

    monkeypatch.setattr(os, "fsync", note)
    with new_folder(out) as folder:
        (folder / "below").mkdir()
        for name in ("x.json", "below/y.json"):
            write_json(folder / name, {})
        for path in (folder, *folder.rglob("*")):
            names[path.stat().st_ino] = str(path.relative_to(folder))
        assert steps == []
    assert sorted(steps) == [".", "below", "below/y.json", "x.json"]
    assert steps.index("x.json") < steps.index(".")
    assert steps.index("below/y.json") < steps.index("below")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_new_folder_that_the_disk_does_not_take_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with (
        pytest.raises(CheckpointError, match="cannot be written"),
        new_folder(tmp_path / "out") as folder,
    ):
        write_json(folder / "x.json", {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_sync_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    with new_folder(tmp_path / "out") as folder:
        write_json(folder / "x.json", {})
    assert read_json(tmp_path / "out" / "x.json") == {}


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_killed_processes_left_goes_with_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    """Only folders of this name without a maker, and none that is a link."""
    ages = {
        "o[u]t.partial-0123abcd": 25,
        "o[u]t.partial-89abcdef": 23,
        "out.partial-0123abcd": 25,
        "o[u]t.partial-mine": 25,
        "o[u]t.partial-0123abcd.kept": 25,
        "other": 25,
    }
    for name, hours in ages.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "x.json", {})
        os.utime(tmp_path / name, (time.time() - hours * 3600,) * 2)
    link = tmp_path / "o[u]t.partial-00000000"
    link.symlink_to(tmp_path / "other")
    os.utime(link, (0, 0), follow_symlinks=False)
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with new_folder(tmp_path / "o[u]t"):
        pass
    for name in ("o[u]t.partial-0123abcd", *(["o[u]t.partial-89abcdef"] if has_locks else [])):
        del ages[name]
    assert {path.name for path in tmp_path.iterdir()} == {*ages, "o[u]t", link.name}
    assert read_json(link / "x.json") == {}


def test_a_new_folder_that_is_interrupted_at_once_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupt)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out"):
        pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == []


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOTSUP, "no locks here")


def test_a_folder_that_a_living_maker_fills_stays_however_old(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not empty"), new_folder(tmp_path / "out") as slow:
        os.utime(slow, (0, 0))
        with new_folder(tmp_path / "out") as quick:
            write_json(quick / "x.json", {})
        assert slow.is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_signal_that_ends_the_process_leaves_nothing(
    tmp_path: Path, number: signal.Signals, is_ignored: bool
) -> None:
    """As after Ctrl-C; whoever ignores a signal, as nohup does, goes on ignoring it."""
    code = (
        "import os, signal, sys\n"
        "from redrafter_mlx.folders import new_folder\n"
        "number = int(sys.argv[2])\n"
        "signal.signal(number, signal.SIG_IGN) if sys.argv[3] == 'True' else None\n"
        "with new_folder(sys.argv[1]):\n"
        "    os.kill(os.getpid(), number)\n"
        "os.kill(os.getpid(), number)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out"), str(int(number)), str(is_ignored)]
    ended = subprocess.run(command, timeout=60)
    assert ended.returncode == (0 if is_ignored else 128 + number)
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if is_ignored else [])
