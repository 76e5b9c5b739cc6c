"""A hub on a free port of the loopback interface, which answers huggingface_hub as the public one does."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

REVISION = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_accepted"
GATED, NOT_FOUND, NO_REVISION = "GatedRepo", "RepoNotFound", "RevisionNotFound"
API = re.compile(r"/api/models/([^/?]+/[^/?]+)(/tree/[^?]*)?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")


@dataclass
class LocalHub:
    """The repositories that it has, and what it was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by name, by repository."""
    gated: set[str] = field(default_factory=set)
    """Repositories whose files nobody has access to."""
    without_main: set[str] = field(default_factory=set)
    cut_after: int = 0
    """Bytes after which the connection of the next download is closed; 0 = never."""
    asked: list[str] = field(default_factory=list)
    """Paths, with the range of bytes where one was asked for."""

    def add(self, name: str, folder: Path) -> None:
        """Add a repository with the files of a folder."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.repositories[name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        wanted = self.headers.get("Range", "")
        self.hub.asked.append(f"{self.command} {self.path} {wanted}".strip())
        if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            self._error(401, message="Invalid credentials in Authorization header")
            return
        api, file = API.match(self.path), FILE.match(self.path)
        name = (api or file or [""] * 2)[1]
        files = self.hub.repositories.get(name)
        if files is None:  # private ones look the same; without a token it says 401
            self._error(404 if "Authorization" in self.headers else 401, NOT_FOUND)
        elif name in self.hub.without_main:
            self._error(404, NO_REVISION)
        elif api is not None:
            self._send(json.dumps(_tree(files) if api[2] else _info(name, files)).encode(), body=body)
        elif name in self.hub.gated:
            self._error(403 if "Authorization" in self.headers else 401, GATED)
        elif file is not None:
            self._file(files[file[2]], wanted, body=body)

    def _file(self, content: bytes, wanted: str, *, body: bool) -> None:
        first = int(wanted.removeprefix("bytes=").partition("-")[0] or 0)
        headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        cut = self.hub.cut_after if self.command == "GET" and 0 < self.hub.cut_after < len(content) else 0
        if cut:
            self.hub.cut_after = 0
        self._send(content[first:], body=body, status=206 if wanted else 200, cut=cut, **headers)

    def _error(self, status: int, code: str = "", message: str = "") -> None:
        named = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(b"{}", status=status, **{name: text for name, text in named.items() if text})

    def _send(self, content: bytes, *, body: bool = True, status: int = 200, cut: int = 0, **headers: str) -> None:
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(content[: cut or None])
        self.close_connection = bool(cut)


def _info(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {"id": name, "modelId": name, "sha": REVISION, "siblings": [{"rfilename": each} for each in files]}


def _tree(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": path, "size": len(content), "oid": _digest(content)} for path, content in files.items()
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub without repositories, an empty cache and no token."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    # huggingface_hub reads its variables when it is imported, and these values when it is called.
    address = f"http://127.0.0.1:{server.server_port}"
    files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
