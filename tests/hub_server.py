"""A server on the loopback that speaks as much of the Hugging Face Hub's HTTP as a download needs.

Source:
    huggingface_hub, hf_api.py (model_info, list_repo_tree) and file_download.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

API = re.compile(r"/api/models/(\w[^/]*/[^/]+)(?:/(revision|tree)/([^/]+))?/?")
FILE = re.compile(r"/(\w[^/]*/[^/]+)/resolve/([^/]+)/(.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error."""

    status: int
    code: str | None = None


@dataclass
class HubServer:
    """What is served, and what was asked.

    Attributes:
        url: For HF_ENDPOINT.
        repositories: By ``org/name``, the files by name.
        revisions: Of each repository the commits that names stand for, besides ``main``.
        refusals: Error answers by path of a request; ``org/name`` refuses all of it.
        cuts: Bytes of a file after which the connection ends, by name; ``cut_once`` heals.
        lies: Bytes left out of a file that its listing tells of, by name;
            ``lies_in_heads`` leaves them out of the answer to HEAD, too.
        requests: Method and path of each request.
        tokens: What they brought to be let in, for the repositories' files.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, dict[str, str]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    cut_once: bool = True
    lies: dict[str, int] = field(default_factory=dict)
    lies_in_heads: bool = False
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def add(self, repository: str, files: Mapping[str, bytes], **revisions: str) -> None:
        """Serve a repository; its only commit comes from its name."""
        self.repositories[repository] = dict(files)
        self.revisions[repository] = {"main": commit_of(repository), **revisions}

    @property
    def files_asked(self) -> set[str]:
        """Names of the files whose content or head was asked for."""
        matches = (FILE.fullmatch(request.split(" ", 1)[1]) for request in self.requests)
        return {match[3] for match in matches if match}


def commit_of(repository: str) -> str:
    """Return the commit hash that the server gives a repository."""
    return hashlib.sha1(repository.encode()).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Have huggingface_hub, which read its environment on import, ask this server."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    """Run a server until the block ends."""
    hub = HubServer()

    class Handler(_Handler):
        server_hub = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        match = API.fullmatch(path) or FILE.fullmatch(path)
        if match:
            hub.tokens.add(self.headers.get("Authorization"))
        repository = match[1] if match else ""
        refusal = hub.refusals.get(repository) or hub.refusals.get(path)
        if refusal is None and repository not in hub.repositories:
            refusal = Refusal(404, "RepoNotFound")
        if refusal is not None:
            self._refuse(refusal)
        elif api := API.fullmatch(path):
            self._answer_api(repository, api[2], api[3] or "main")
        elif file := FILE.fullmatch(path):
            self._answer_file(repository, file[2], file[3])

    def _refuse(self, refusal: Refusal) -> None:
        self.send_response(refusal.status)
        if refusal.code:
            self.send_header("X-Error-Code", refusal.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _commit(self, repository: str, revision: str) -> str | None:
        known = self.server_hub.revisions[repository]
        return known.get(revision, revision if revision in known.values() else None)

    def _answer_api(self, repository: str, kind: str | None, revision: str) -> None:
        commit = self._commit(repository, revision)
        if commit is None:
            self._refuse(Refusal(404, "RevisionNotFound"))
            return
        files = self.server_hub.repositories[repository]
        if kind == "tree":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                    for name, data in files.items()
                ]
            )
            return
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        self._send_json(
            {"id": repository, "modelId": repository, "sha": commit, "siblings": siblings}
        )

    def _answer_file(self, repository: str, revision: str, name: str) -> None:
        data = self.server_hub.repositories[repository].get(name)
        commit = self._commit(repository, revision)
        if data is None or commit is None:
            self._refuse(Refusal(404, "EntryNotFound" if commit else "RevisionNotFound"))
            return
        hub = self.server_hub
        has_lie = self.command == "GET" or hub.lies_in_heads
        served = data[: len(data) - (hub.lies.get(name, 0) if has_lie else 0)]
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{etag(data)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(served) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(served) - 1}/{len(served)}")
        self.end_headers()
        if self.command == "GET":
            self._send_body(name, served[start:])

    def _send_body(self, name: str, body: bytes) -> None:
        hub = self.server_hub
        if name in hub.cuts:
            body = body[: hub.cuts[name]]
            if hub.cut_once:
                del hub.cuts[name]
        self.wfile.write(body)

    def _send_json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def etag(data: bytes) -> str:
    """Return what the Hub names a file's content by: git's hash of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
