"""``redrafter-mlx convert`` on models; what becomes of them is tested in tests/convert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrafter_mlx.cli import progress
from redrafter_mlx.sizes import readable_size
from redrafter_mlx.weights import read_json
from tests.cli.conftest import Run
from tests.cli.tiny_source import write_drafter
from tests.convert.tiny_gguf import write_tiny
from tests.hub_server import HubServer, files_of, serve_hub, use_hub
from tests.tiny_vicuna import write_tiny_vicuna

pytestmark = pytest.mark.usefixtures("cache")

VICUNA = "lmsys/vicuna-7b-v1.3"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_vicuna(tmp_path / "source")


@pytest.fixture
def hub(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve the model and a drafter."""
    with serve_hub() as server:
        server.add(VICUNA, files_of(source), v2="c" * 40)
        server.add("org/drafter", files_of(write_drafter(tmp_path / "a-drafter")))
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        yield server


def test_a_folder_becomes_a_model(run: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--dtype", "bfloat16", "--quantize", "8", "--group-size", "32")
    result = run("convert", str(source), "--out", str(out), *options)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *notes = result.stdout.splitlines()
    size = readable_size(sum(path.stat().st_size for path in out.iterdir()))
    assert first.startswith(f"{out}: {size}, ") and first.endswith(" tensors")
    assert any("rotary" in note for note in notes)
    config = read_json(out / "config.json")
    assert (config["quantization"]["bits"], config["quantization"]["group_size"]) == (8, 32)
    assert not (out / "chat_template.jinja").exists(), "a folder of unknown origin gets none"


def test_a_gguf_file_becomes_a_model(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("convert", str(write_tiny(tmp_path / "x.gguf")), "--out", str(out))
    assert (result.exit_code, result.stderr) == (0, "")
    assert read_json(out / "config.json")["model_type"] == "llama"


@pytest.mark.parametrize("name", ["vicuna-7b", VICUNA])
def test_a_known_name_brings_its_chat_template(
    run: Run, hub: HubServer, tmp_path: Path, cache: Path, name: str
) -> None:
    out = tmp_path / "out"
    result = run("convert", name, "--out", str(out), "--revision", "v2")
    assert result.exit_code == 0
    assert result.stderr == f"Downloading {VICUNA}: 8 files, 255 kB\n"
    assert "ASSISTANT:" in (out / "chat_template.jinja").read_text()
    assert not (cache / "models").exists(), "what has a place of its own is not cached, too"
    assert f"GET /{VICUNA}/resolve/{'c' * 40}/config.json" in hub.requests


def test_a_repository_may_hold_a_drafter(run: Run, hub: HubServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--dtype", "bfloat16")
    result = run("convert", "org/drafter", "--out", str(out), *options)
    assert result.exit_code == 0
    assert "head of its own; weights not quantised" in result.stdout
    assert read_json(out / "config.json")["format_version"] == 1


@pytest.mark.parametrize(
    ("options", "option", "complaint"),
    [
        (["--target", "tiny"], "--target", "it is for a drafter, but "),
        (["--draft-length", "3"], "--draft-length", "it is for a drafter, but "),
        (["--draft-vocab", "3", "--from", "x.npz"], "--draft-vocab", "it is for a drafter, but "),
        (["--dtype", "float64"], "--dtype", "'float64' is not one of float16, bfloat16, float32"),
        (["--quantize", "3"], "--quantize", "3 is neither 4 nor 8"),
        (["--quantize", "4", "--group-size", "16"], "--group-size", "16 is none of 32, 64, 128"),
        (["--group-size", "32"], "--group-size", "it goes with --quantize; give both"),
    ],
)
def test_what_does_not_fit_a_model_is_wrong_usage(
    run: Run, source: Path, tmp_path: Path, options: list[str], option: str, complaint: str
) -> None:
    result = run("convert", str(source), "--out", str(tmp_path / "out"), *options)
    assert result.exit_code == 2
    assert f"{option}: {complaint}" in result.stderr.replace("'--", "--").replace("':", ":")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_refused(run: Run, source: Path, tmp_path: Path) -> None:
    """Else shards of an earlier conversion would lie among the new ones."""
    out = tmp_path / "out"
    out.mkdir()
    old = out / "model-00001-of-00002.safetensors"
    old.write_bytes(b"old")
    result = run("convert", str(source), "--out", str(out))
    assert result.exit_code == 1
    assert "exists and is not an empty folder; choose another or remove it." in result.stderr
    assert [path.name for path in out.iterdir()] == [old.name]
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("smollm2", "There is no folder and no model 'smollm2'"),
        ("org/none", "or private there; check the name"),
        ("empty", "empty holds"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_cannot_be_converted_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    result = run("convert", name, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_has_no_revision(run: Run, source: Path, tmp_path: Path) -> None:
    result = run("convert", str(source), "--out", str(tmp_path / "out"), "--revision", "v2")
    assert result.exit_code == 1
    assert "has no revision 'v2'; leave out --revision" in result.stderr


def test_progress_reaches_the_terminal(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    monkeypatch.setattr(progress.Activity, "progress", lambda _, *step: steps.append(step))
    assert run("convert", str(source), "--out", str(tmp_path / "out")).exit_code == 0
    assert steps[-1][0] == steps[-1][1] > 100_000


@pytest.mark.parametrize("place", ["sub", "deep/er", "../source/sub"])
def test_nothing_is_written_into_the_source(run: Run, source: Path, place: str) -> None:
    before = sorted(source.iterdir())
    result = run("convert", str(source), "--out", str(source / place))
    assert result.exit_code == 1
    assert f"is inside {source}, which is converted; choose another place." in result.stderr
    assert sorted(source.iterdir()) == before
