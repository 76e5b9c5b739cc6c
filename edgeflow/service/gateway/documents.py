"""The documentation that a service shows on loopback: its site at /docs, and the HTTP reference at /docs/api."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from edgeflow.service.http.middleware import API, DOCS, OPENAPI, PAGE_PARTS

SITE = Path(__file__).with_name("site")
"""The folder that `scripts/docs` writes; an installation from a bare clone lacks it."""
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of every page. None may load anything from another host: a robot's network has no internet."""
NO_SITE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>edgeflow</title>
<style>body {{ font-family: sans-serif; max-width: 40em; margin: 4em auto; line-height: 1.5 }}</style>
<h1>edgeflow</h1>
<p>This installation does not contain the documentation. In a clone of the repository, <code>make docs</code> adds it;
its sources are in <code>docs/</code>.</p>
<p><a href="{API}">HTTP reference of this service</a></p>
</html>
"""


def document_routes(routes: Sequence[Route], site: Path = SITE) -> list[Route]:
    """The routes of the site and of the reference of `routes`, which a thread makes at the first request."""
    return [*_reference(routes), *_site(site)]


async def _to_docs(_: Request) -> Response:
    """Lead to the documentation; only the path, since a whole address would repeat the Host header."""
    return RedirectResponse(f"{DOCS}/")


def _site(site: Path) -> list[Route]:
    from starlette.staticfiles import StaticFiles  # not needed where documentation is not served

    files = StaticFiles(directory=site, check_dir=False)

    async def page(request: Request) -> Response:
        """Send a file of the site."""
        path = request.path_params["path"]
        if not path and not (site / "index.html").is_file():
            return HTMLResponse(NO_SITE, headers=HEADERS)
        name = f"{path}index.html" if not path or path.endswith("/") else path
        answer = await files.get_response(name, request.scope)
        answer.headers.update(HEADERS)
        return answer

    return [Route(DOCS, _to_docs, methods=["GET"]), Route(f"{DOCS}/{{path:path}}", page, methods=["GET"])]


def _reference(routes: Sequence[Route]) -> list[Route]:
    def made() -> dict[str, Any]:
        from edgeflow.service.gateway import openapi  # a second of work that serving does not need

        return openapi.document(routes)

    def shown() -> bytes:
        from edgeflow.service.gateway import openapi

        return openapi.page()

    async def document(_: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(await asyncio.to_thread(made))

    async def reference(_: Request) -> Response:
        """Show the OpenAPI document."""
        return HTMLResponse(await asyncio.to_thread(shown), headers=HEADERS)

    async def part(request: Request) -> Response:
        """Send a file that the page loads."""
        from edgeflow.service.gateway import openapi

        name = request.url.path.rpartition("/")[2]
        content = await asyncio.to_thread(openapi.page_part, name)
        return Response(content, media_type=PAGE_PARTS[name], headers=HEADERS)

    parts = [Route(f"{API}/{name}", part, methods=["GET"]) for name in PAGE_PARTS]
    return [Route(OPENAPI, document, methods=["GET"]), Route(API, reference, methods=["GET"]), *parts]
