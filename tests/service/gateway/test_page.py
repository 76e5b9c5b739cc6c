"""The live page: all of its files come from this service, under headers that allow nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from edgeflow.service.gateway.page import DOCS_LINK, FOLDER, HEADERS, INDEX, MEDIA_TYPES, page_routes
from edgeflow.service.http.answers import application
from edgeflow_client.reasons import Reason
from tests.service.harness import serving
from tests.service.protected import write_tokens

FILES = {path.name: path.read_text() for path in FOLDER.iterdir()}
IMPORT = re.compile(r'^(?:import|export)\b[^;]*?from "\./([\w.-]+)";', re.MULTILINE)
MARKUP = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval|Function|document\.write|srcdoc|setTimeout\(\"|on\w+=)"
)
ADDRESS = re.compile(r"\b(?:https?|wss?)://[\w.]+")
NAMESPACE = "http://www.w3.org"
MOST_LINES = 400


class Parts(HTMLParser):
    """What index.html loads, and what would run or apply in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._tag = tag
        self.loads += [given[name] for name in ("src", "href") if tag in ("script", "link", "img") and given.get(name)]
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(page_routes(documents=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def parts() -> Parts:
    found = Parts()
    found.feed(FILES[INDEX])
    return found


async def test_every_file_that_the_page_loads_is_served_with_its_type(http: httpx.AsyncClient):
    index = await http.get("/")
    assert (index.status_code, index.text) == (200, FILES[INDEX])
    waiting, seen = {name.removeprefix("page/") for name in parts().loads}, {INDEX}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        answer = await http.get(f"/page/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, MEDIA_TYPES[Path(name).suffix]), name
        assert HEADERS.items() <= dict(answer.headers).items()
        waiting |= {*IMPORT.findall(answer.text)} - seen
    assert seen == {*FILES}, "a file that nothing loads, or one that is missing"


async def test_a_browser_that_has_a_file_gets_304(http: httpx.AsyncClient):
    for path in ("/", "/page/main.js"):
        first = await http.get(path)
        assert HEADERS.items() <= dict(first.headers).items()
        again = await http.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert (await http.get(path, headers={"if-none-match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    "name", ["index.html", "page.py", "", "nothing.js", "%2e%2e/page.py", "..%2fpage.py", "a/b.js"]
)
async def test_other_names_are_not_found(http: httpx.AsyncClient, name: str):
    assert (await http.get(f"/page/{name}")).status_code == 404


def test_the_policy_allows_only_this_service_and_no_markup():
    policy = {part.split()[0]: part.split()[1:] for part in HEADERS["content-security-policy"].split(";")}
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"]
    assert policy["require-trusted-types-for"] == ["'script'"]


def test_nothing_is_inline_and_no_text_becomes_markup():
    assert parts().inline == []
    found = {name: MARKUP.findall(text) for name, text in FILES.items() if name != INDEX}
    assert {name: words for name, words in found.items() if words} == {}


def test_no_file_names_another_host():
    found = {name: {*ADDRESS.findall(text)} - {NAMESPACE} for name, text in FILES.items()}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}


def test_files_are_short_enough_to_read():
    assert {name for name, text in FILES.items() if text.count("\n") > MOST_LINES} == set()


def test_reasons_in_words_are_reasons_that_exist():
    (block,) = re.findall(r"^const REASONS = \{(.*?)^\};", FILES["words.js"], re.MULTILINE | re.DOTALL)
    named = {*re.findall(r"^  ([A-Z_]+):", block, re.MULTILINE)}
    assert "INGRESS_SILENT" in named and named <= {reason.value for reason in Reason}


async def test_the_page_needs_no_token_and_links_to_the_documentation_on_loopback(checkpoint, tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.json", ("e" * 40, "panel", "observe"))
    async with serving(checkpoint, tokens_file=tokens) as served, httpx.AsyncClient(base_url=served.http) as http:
        index, script, metrics = [await http.get(path) for path in ("/", "/page/main.js", "/metrics")]
        assert (index.status_code, script.status_code, metrics.status_code) == (200, 200, 401)
        assert DOCS_LINK in FILES[INDEX].encode()
        assert DOCS_LINK.replace(b" hidden", b"") in index.content
        strange = await http.get("/", headers={"host": "robots.example"})
        assert strange.status_code == 403, "a name that is not the service's"
