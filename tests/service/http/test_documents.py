"""The documentation that the gateway serves: files of a folder and nothing beside it, from this host only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from edgeflow.service.gateway.documents import HEADERS, document_routes
from edgeflow.service.http.answers import application


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in ("index.html", "start/install.html", "start/index.html", "assets/site.css"):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "site" / "out.html").symlink_to(tmp_path / "secret.html")
    return tmp_path / "site"


@pytest.fixture
async def http(site: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = application(document_routes([], site))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_a_path_without_a_slash_leads_to_the_documentation(http: httpx.AsyncClient):
    answer = await http.get("/docs")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs/"), "without a Host header's name"


@pytest.mark.parametrize(
    ("path", "name", "media_type"),
    [
        ("/docs/", "index.html", "text/html"),
        ("/docs/index.html", "index.html", "text/html"),
        ("/docs/start/", "start/index.html", "text/html"),
        ("/docs/start/install.html", "start/install.html", "text/html"),
        ("/docs/assets/site.css", "assets/site.css", "text/css"),
    ],
)
async def test_a_page_comes_with_headers_that_keep_it_to_this_host(
    http: httpx.AsyncClient, path: str, name: str, media_type: str
):
    answer = await http.get(path)
    assert (answer.status_code, answer.text) == (200, f"this is {name}")
    assert answer.headers["content-type"].startswith(media_type)
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await http.head(path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/docs/start",
        "/docs/assets/",
        "/docs/nothing.html",
        "/docs/../secret.html",
        "/docs/%2e%2e/secret.html",
        "/docs/..%2fsecret.html",
        "/docs//etc/passwd",
        "/docs/%00",
        "/docs/out.html",
        f"/docs/{'x' * 300}",
    ],
)
async def test_nothing_else_is_sent_and_no_folder_is_listed(http: httpx.AsyncClient, path: str):
    answer = await http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NOT_FOUND"


async def test_without_a_site_a_page_says_how_to_get_it(http: httpx.AsyncClient, site: Path):
    site.rename(site.with_name("elsewhere"))
    answer = await http.get("/docs/")
    assert answer.status_code == 200 and "make docs" in answer.text
    assert re.findall('href="([^"]+)"', answer.text) == ["/docs/api"]
    assert HEADERS.items() <= dict(answer.headers).items()
    assert (await http.get("/docs/index.html")).status_code == 404


async def test_the_reference_needs_no_site_and_no_other_host(http: httpx.AsyncClient, site: Path):
    site.rename(site.with_name("elsewhere"))
    page = await http.get("/docs/api")
    assert not re.search(r"https?://", page.text)
    for part in re.findall(r"""(?:src|href)="([^"]+)""", page.text):
        found = await http.get(part)
        assert found.status_code == 200 and len(found.content) > 1000, part
        assert HEADERS.items() <= dict(found.headers).items()
