"""Downloads from a server on the loopback: what is asked, what breaks, and what repairs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.download import SizeLimit, fetch, fetch_config
from redrafter_mlx.loading.watch import Watch
from tests.hub_server import HubServer, Refusal, commit_of, serve_hub, use_hub

NAME = "org/name"
HUB = "the Hugging Face Hub"
NEEDED = {
    "config.json": b'{"a": 1}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": bytes(range(256)) * 400,
}
FILES = NEEDED | {"modeling.py": b"raise", "pytorch_model.bin": b"twice", "README.md": b"read me"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve one repository to huggingface_hub, whose waits between retries are left out."""
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    no_wait = SimpleNamespace(sleep=lambda _: None)
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", no_wait)
    with serve_hub() as server:
        server.add(NAME, FILES, v2="c" * 40)
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        yield server


def stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have nobody answer any more."""
    use_hub(monkeypatch, "http://127.0.0.1:1", tmp_path / "hub")


def refusal(revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as refused:
        fetch(NAME, revision)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_only_the_needed_files_are_asked_for_and_only_once(hub: HubServer) -> None:
    notes: list[str] = []
    folder = fetch(NAME, watch=Watch(notes.append))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == NEEDED
    assert hub.files_asked == NEEDED.keys()
    assert notes == ["Downloading org/name: 4 files, 102 kB"]
    hub.requests.clear()
    assert fetch(NAME, watch=Watch(notes.append)) == folder
    assert hub.requests == []
    assert len(notes) == 1


def test_more_than_the_memory_holds_is_refused_before_it_comes(hub: HubServer) -> None:
    with pytest.raises(
        CheckpointError, match=r"org/name is 102 kB .* has 60 kB of memory; add less"
    ):
        fetch(NAME, limit=SizeLimit(50_000, 60_000, "add less"))
    assert not hub.files_asked
    assert fetch(NAME, limit=SizeLimit(200_000, 60_000, "")).is_dir()


def test_it_lies_in_the_cache_of_huggingface_hub_alone(hub: HubServer, tmp_path: Path) -> None:
    folder = fetch(NAME)
    assert tmp_path / "hub" / "models--org--name" in folder.parents
    weights = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1e5]
    assert {path.resolve() for path in weights} == {(folder / "model.safetensors").resolve()}


def test_a_lost_file_is_fetched_again(hub: HubServer) -> None:
    lost = fetch(NAME) / "model.safetensors"
    lost.resolve().unlink()
    lost.unlink()
    assert fetch(NAME) == lost.parent
    assert lost.read_bytes() == NEEDED["model.safetensors"]


def test_a_damaged_note_asks_the_hub_again(hub: HubServer, tmp_path: Path) -> None:
    folder = fetch(NAME)
    (note,) = (tmp_path / "cache" / "downloads").rglob("*.json")
    for text in ("", "[]", "{}", '{"commit": 5, "files": 7}', '{"commit": "x", "files": []}'):
        note.write_text(text)
        hub.requests.clear()
        assert fetch(NAME) == folder
        assert hub.requests, text


def test_revisions_are_kept_apart(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, second = fetch(NAME), fetch(NAME, "v2")
    assert (newest.name, second.name) == (commit_of(NAME), "c" * 40)
    stop(monkeypatch, tmp_path)
    assert (fetch(NAME), fetch(NAME, "v2")) == (newest, second)
    assert "cannot be reached" in refusal("v3")


def test_a_cut_connection_goes_on_by_itself(hub: HubServer) -> None:
    hub.cuts["model.safetensors"] = 1000
    folder = fetch(NAME)
    assert (folder / "model.safetensors").read_bytes() == NEEDED["model.safetensors"]


def test_a_download_that_stays_broken_is_one_line_and_a_rerun_repairs_it(
    hub: HubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.cuts["model.safetensors"], hub.cut_once = 0, False
    assert "cannot be got from the Hugging Face Hub (" in refusal()
    assert capfd.readouterr() == ("", ""), "no line for each try"
    hub.cuts.clear()
    hub.requests.clear()
    folder = fetch(NAME)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == NEEDED
    contents = {
        request for request in hub.requests if request.startswith("GET") and NAME in request
    }
    assert not any(request.endswith("tokenizer.json") for request in contents), "it was complete"


@pytest.mark.parametrize(
    ("is_hidden", "told"),
    [
        (
            False,
            f"cannot be got from {HUB} (Consistency check failed: file should be of size 102400",
        ),
        (True, "model.safetensors came with 102393 bytes and not 102400; run again"),
    ],
)
def test_a_wrong_length_is_one_line_and_a_rerun_repairs_it(
    hub: HubServer, is_hidden: bool, told: str
) -> None:
    """Whether the head of the file tells the right length or the wrong one."""
    hub.lies["model.safetensors"], hub.lies_in_heads = 7, is_hidden
    assert told in refusal()
    hub.lies.clear()
    assert (fetch(NAME) / "model.safetensors").read_bytes() == NEEDED["model.safetensors"]


@pytest.mark.parametrize(
    ("place", "status", "code", "told"),
    [
        (
            NAME,
            404,
            "RepoNotFound",
            "is no folder here, and not on the Hugging Face Hub or private there; check",
        ),
        (
            NAME,
            401,
            None,
            "is not for you on the Hugging Face Hub (the server answered 401); log in",
        ),
        (
            NAME,
            401,
            "RepoNotFound",
            "is no folder here, and not on the Hugging Face Hub or private there; check",
        ),
        (
            NAME,
            403,
            "GatedRepo",
            "asks for its terms to be accepted on the Hugging Face Hub; accept",
        ),
        (
            NAME,
            401,
            "GatedRepo",
            "asks for its terms to be accepted on the Hugging Face Hub; accept",
        ),
        (
            NAME,
            403,
            None,
            "cannot be got from the Hugging Face Hub (the server answered 403); run again",
        ),
        (
            NAME,
            500,
            None,
            "cannot be got from the Hugging Face Hub (the server answered 500); run again",
        ),
        ("model.safetensors", 403, "GatedRepo", "asks for its terms to be accepted"),
        ("model.safetensors", 404, "EntryNotFound", "(the server answered 404); run again"),
        ("model.safetensors", 500, None, "(the server answered 500); run again"),
    ],
)
def test_a_refusal_is_one_line_and_a_rerun_repairs_it(
    hub: HubServer, place: str, status: int, code: str | None, told: str
) -> None:
    path = place if place == NAME else f"/{NAME}/resolve/{commit_of(NAME)}/{place}"
    hub.refusals[path] = Refusal(status, code)
    message = refusal()
    assert told in message
    assert message.startswith("org/name ") and message.endswith(", or choose smollm2-135m.")
    hub.refusals.clear()
    assert {path.name for path in fetch(NAME).iterdir()} == NEEDED.keys()


def test_what_the_hub_does_not_know_is_told(hub: HubServer) -> None:
    assert refusal("v3") == (
        f"revision 'v3' of org/name is not on {HUB}; give a branch, a tag or a whole commit."
    )
    with pytest.raises(
        CheckpointError, match="is no name that the Hugging Face Hub allows; give org/name"
    ):
        fetch("org/two--dashes")


def test_what_another_program_downloaded_is_not_downloaded_twice(hub: HubServer) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(NAME, allow_patterns=["*.safetensors"])
    hub.requests.clear()
    fetch(NAME)
    asked = [
        request for request in hub.requests if request.startswith("GET") and "resolve" in request
    ]
    assert not any(request.endswith("model.safetensors") for request in asked)
    assert len(asked) == len(NEEDED) - 1


@pytest.mark.parametrize("is_forbidden", [True, False])
def test_without_a_network_one_line_says_so(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forbidden: bool
) -> None:
    stop(monkeypatch, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_forbidden)
    unreached = f"in the local cache, and {HUB} cannot be reached; check the network"
    assert refusal() == (
        f"org/name is neither a folder here nor {unreached}, or choose smollm2-135m."
    )
    assert refusal("v3") == f"revision 'v3' of org/name is not {unreached}."
    with pytest.raises(CheckpointError) as refused:
        fetch("lmsys/vicuna-7b-v1.3")
    assert str(refused.value) == (
        f"vicuna-7b (lmsys/vicuna-7b-v1.3) is not {unreached}, or choose smollm2-135m."
    )


def test_a_look_at_the_configuration_is_quick_and_quiet_without_a_network(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No line for each try, and no second try; what is in the cache serves."""
    fetched = fetch_config(NAME, None)
    assert fetched is not None and [path.name for path in fetched.iterdir()] == ["config.json"]
    waits: list[float] = []
    waiting = SimpleNamespace(sleep=waits.append)
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", waiting)
    stop(monkeypatch, tmp_path)
    assert fetch_config(NAME, None) == fetched
    assert fetch_config("org/other", None) is None
    assert (waits, capfd.readouterr()) == ([], ("", ""))


def test_without_a_network_what_another_program_downloaded_serves(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(NAME, allow_patterns=["*.json", "*.safetensors"]))
    hub.requests.clear()
    hub.refusals[NAME] = Refusal(503)
    assert fetch(NAME) == folder
    stop(monkeypatch, tmp_path)
    assert fetch(NAME) == folder
    assert hub.files_asked == set(), "neither time was anything downloaded twice"
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
    )
    assert "model-2.safetensors is not in" in refusal()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    assert "in the local cache, and the Hugging Face Hub cannot be reached" in refusal()


def test_no_bars_where_nobody_looks(hub: HubServer, capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    fetch(NAME)
    assert capfd.readouterr() == ("", "")
    assert not are_progress_bars_disabled()


def test_the_files_that_an_index_names_are_downloaded(hub: HubServer) -> None:
    """Whatever they are called; one that the repository lacks is told before any comes."""
    index = {"weight_map": {"a": "model-a.safetensors", "b": "model_b.safetensors"}}
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-a.safetensors": b"a",
        "model-00001-of-00001.safetensors": b"unnamed",
    }
    hub.add("org/lacking", files)
    with pytest.raises(CheckpointError, match=r"org/lacking lacks model_b\.safetensors; choose"):
        fetch("org/lacking")
    assert hub.files_asked == {"model.safetensors.index.json"}
    hub.add("org/whole", files | {"model_b.safetensors": b"b"})
    names = {path.name for path in fetch("org/whole").iterdir()}
    assert names == {"config.json", "model.safetensors.index.json", *index["weight_map"].values()}
