"""The live page: files of the folder `page`, read once, under headers that keep it to this service."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeflow.service.http.middleware import PAGE

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
"""Headers of every file of the page. Texts of strangers are shown on it, so nothing may become a script."""
DOCS_LINK = b'<a id="docs" class="quiet" href="docs/" hidden>'
"""How index.html links to the documentation; the link is shown where documentation is served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> PageFile:
        """A file with the media type of its suffix; equal contents have equal tags."""
        return cls(content, MEDIA_TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def answer(self, known: str) -> Response:
        """The file, or 304 for a browser that has it; known: its If-None-Match header."""
        headers = {**HEADERS, "etag": self.etag}
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers={**headers, "content-type": self.media_type})


def page_routes(*, documents: bool) -> list[Route]:
    """The routes of the page. documents: documentation is served, and the page links to it."""
    files = {
        path.name: PageFile.of(path.read_bytes(), path.suffix)
        for path in sorted(FOLDER.iterdir())
        if path.suffix in MEDIA_TYPES
    }
    index = files.pop(INDEX)
    if documents:
        index = PageFile.of(index.content.replace(DOCS_LINK, DOCS_LINK.replace(b" hidden", b"")), ".html")

    async def page(request: Request) -> Response:
        """Show the live page."""
        return index.answer(request.headers.get("if-none-match", ""))

    async def part(request: Request) -> Response:
        """Send a file that the live page loads."""
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return file.answer(request.headers.get("if-none-match", ""))

    return [
        Route("/", page, methods=["GET"]),
        Route(f"{PAGE}/{{name}}", part, methods=["GET"]),
    ]
