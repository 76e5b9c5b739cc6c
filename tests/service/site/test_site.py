"""The documentation as a site: it builds without a warning, the gateway serves it, and it asks no other host."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from benchmarks.page.browser import browser, chromium
from edgeflow.service.gateway import gateway as gateway_module
from edgeflow.service.gateway.documents import document_routes
from tests.service.harness import serving

ROOT = Path(__file__).parents[3]
LARGEST_MIB = 10.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [ROOT / "scripts" / "docs", "--site-dir", folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "document_routes", partial(document_routes, site=site))


class PageParts(HTMLParser):
    """What a page links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(given["href"])
        elif given.get("src"):
            self.loads.append(given["src"])


def parts_of(text: str) -> PageParts:
    parts = PageParts()
    parts.feed(text)
    return parts


async def test_every_page_and_everything_that_pages_link_to_is_served(checkpoint, shown):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        waiting, seen = ["/docs/"], {"/docs/"}
        while waiting:
            path = waiting.pop()
            answer = await http.get(path)
            assert answer.status_code == 200, path
            assert "content-security-policy" in answer.headers
            if not answer.headers["content-type"].startswith("text/html") or path.startswith("/docs/api"):
                continue
            parts = parts_of(answer.text)
            for target in (*parts.links, *parts.loads):
                address = urlsplit(urljoin(f"{served.http}{path}", target))
                assert address.scheme == "http" or target in parts.links, f"{path} loads {target}"
                if address.netloc == urlsplit(served.http).netloc and address.path not in seen:
                    seen.add(address.path)
                    waiting.append(address.path)
        assert len([path for path in seen if path.endswith(".html")]) > 40


def test_it_is_small_enough_for_a_wheel(site: Path):
    mib = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 2**20
    assert mib < LARGEST_MIB
    assert not list(site.rglob("*.map"))


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine: apt-get install chromium")
async def test_a_browser_shows_and_searches_it_without_another_host(checkpoint, shown, site: Path, tmp_path: Path):
    async with serving(checkpoint) as served, browser(tmp_path / "profile") as tab:
        folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
        for name in ("index", "reference/configuration", "architecture"):
            await tab.open(f"{served.http}/docs/{name}.html")
            assert await tab.evaluate("document.querySelector('h1').textContent.length") > 3
            await tab.screenshot(folder / f"{name.rpartition('/')[2]}.png")
        query = "document.querySelector('[data-md-component=search-query]')"
        await tab.evaluate(f"{query}.focus()")
        await tab.evaluate(f"{query}.value = 'quantize'")
        await tab.evaluate(f"{query}.dispatchEvent(new Event('keyup', {{bubbles: true}}))")
        await tab.until("document.querySelectorAll('.md-search-result__item').length > 2")
        await tab.screenshot(folder / "search.png")
        await tab.open(f"{served.http}/docs/api")
        await tab.until("document.querySelectorAll('.opblock-summary').length > 10")
        await tab.screenshot(folder / "api.png")
        assert tab.asked and not tab.other_hosts(served.http)
        assert tab.complaints == []
