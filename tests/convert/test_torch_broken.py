"""PyTorch zip files that are broken, compressed or of another kind: one line each."""

import struct
import zipfile
from pathlib import Path

import pytest

from redrafter_mlx.convert.torch_checkpoint import open_torch
from redrafter_mlx.errors import CheckpointError
from tests.convert.tiny_drafter import folder_of, refusal
from tests.convert.tiny_torch import archive, mapping, program, tensor

FILES = Path(__file__).parent / "torch_files"
PICKLE = program(mapping({"w": tensor((2, 3), (3, 1))}))
SIX = {"0": bytes(24)}
HUGE = 2**60


def sound(path: Path, **others: bytes) -> Path:
    return archive(path, PICKLE, SIX, **others)


@pytest.mark.parametrize("order", [b"big", b"", b"little\n", b"x" * 10000])
def test_another_byte_order_is_refused(tmp_path: Path, order: bytes) -> None:
    message = refusal(open_torch, sound(tmp_path / "a.pt", byteorder=order))
    assert "byte order" in message


def test_a_compressed_entry_is_refused(tmp_path: Path) -> None:
    """So that no zip bomb goes off: PyTorch stores its entries."""
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", PICKLE)
        file.writestr("archive/data/0", bytes(24 << 20))
    assert path.stat().st_size < 1 << 20
    assert "compressed" in refusal(open_torch, path)


@pytest.mark.parametrize("name", ["../evil", "archive/../../evil", "/etc/evil", "archive/data/.."])
def test_an_entry_outside_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = sound(tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, b"evil")
    assert repr(name) in refusal(open_torch, path)
    assert folder_of(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("names", [["a/data.pkl", "b/data.pkl"], ["data.pkl"], ["a/b/data.pkl"],
                                   ["a/x"]])  # fmt: skip
def test_a_zip_of_something_else_is_refused(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        for name in names:
            file.writestr(name, program(b"}"))
    assert "data.pkl" in refusal(open_torch, tmp_path / "a.pt")


def directory_entry(data: bytes, name: bytes) -> int:
    """Return where a name's entry in the directory begins."""
    return data.rindex(name) - 46


@pytest.mark.parametrize(("field", "code", "value"), [
    (10, "<H", 8), (8, "<H", 1), (20, "<I", 2**32 - 2), (24, "<I", 2**32 - 2),
    (24, "<I", 25), (42, "<I", 2**32 - 2), (42, "<I", 5), (42, "<I", 0),
])  # fmt: skip
def test_a_directory_that_lies_is_refused(
    tmp_path: Path, field: int, code: str, value: int
) -> None:
    """Method, flags, the two sizes, and where the entry lies."""
    path = sound(tmp_path / "a.pt")
    data = bytearray(path.read_bytes())
    struct.pack_into(code, data, directory_entry(bytes(data), b"archive/data/0") + field, value)
    path.write_bytes(data)
    refusal(open_torch, path)


def test_an_entry_that_claims_2_to_the_60_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", PICKLE)
        entry = zipfile.ZipInfo("archive/data/0")
        entry.extra = struct.pack("<HHQQ", 1, 16, HUGE, HUGE)  # sizes of 64 bits
        file.writestr(entry, bytes(24))
    data = bytearray(path.read_bytes())
    sizes = directory_entry(bytes(data), b"archive/data/0") + 20
    data[sizes : sizes + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert str(HUGE) in refusal(open_torch, path)


def test_an_entry_without_its_own_header_is_refused(tmp_path: Path) -> None:
    path = sound(tmp_path / "a.pt")
    data = path.read_bytes()
    begin = data.index(b"archive/data/0") - 30
    path.write_bytes(data[:begin] + bytes(4) + data[begin + 4 :])
    assert f"does not begin at byte {begin}" in refusal(open_torch, path)


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    """A small file could else hold the same bytes without end."""
    path = archive(tmp_path / "a.pt", PICKLE, {**SIX, "1": bytes(24)})
    data = bytearray(path.read_bytes())
    first, second = (directory_entry(bytes(data), f"archive/data/{i}".encode()) for i in "01")
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    path.write_bytes(data)
    assert "overlaps" in refusal(open_torch, path)


@pytest.mark.parametrize("data", [b"", b"P", b"PK", b"PK\x05\x06" + bytes(18), b"\x80\x02}.",
                                  b"<!DOCTYPE html>", bytes(4096)])  # fmt: skip
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    refusal(open_torch, tmp_path / "a.pt")


def test_an_absent_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refusal(open_torch, tmp_path / "none.pt")
    refusal(open_torch, tmp_path)


@pytest.mark.parametrize("name", ["dtypes.pt", "views.pt", "trained.pt"])
def test_a_truncated_file_is_refused_at_every_97th_byte(tmp_path: Path, name: str) -> None:
    whole = (FILES / name).read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        (tmp_path / "a.pt").write_bytes(whole[:length])
        refusal(open_torch, tmp_path / "a.pt")
    assert folder_of(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("value", [0x00, 0xFF, 0x80])
def test_a_changed_byte_never_ends_in_another_error(tmp_path: Path, value: int) -> None:
    """It is refused in one line, or what it changed is a name or a number."""
    whole = (FILES / "small.pt").read_bytes()
    for place in range(0, len(whole), 7):
        (tmp_path / "a.pt").write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            with open_torch(tmp_path / "a.pt") as file:
                for found in file.tensors.values():
                    found.load()
        except CheckpointError as error:
            assert "\n" not in str(error)
