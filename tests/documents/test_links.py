"""No link and no anchor of a document is broken, and documents that the code names exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

from scripts.documents.hook import lists_apart, site_uri
from scripts.documents.links import HEADING, anchors, links, resolve, slug, without_fences

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "edgeflow", "client", "benchmarks", "deploy", "examples", "plugins", "proto", "tests", "scripts")
SOURCES = ("*.py", "*.proto", "*.yaml", "*.service")
NAMED = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md(?:#[\w-]+)?")


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if "build" not in path.parts)


def sources() -> list[Path]:
    found = [path for folder in FOLDERS[1:] for kind in SOURCES for path in (ROOT / folder).rglob(kind)]
    found += [path for path in (*ROOT.glob("*file*"), *(ROOT / "scripts").iterdir()) if path.is_file()]
    return [path for path in found if not {"site", "build", "results"} & set(path.parts) and path != Path(__file__)]


@cache
def anchors_of(page: str) -> set[str]:
    return anchors((ROOT / page).read_text())


def leads_somewhere(page: str, target: str) -> bool:
    path, anchor = resolve(page, target)
    if target.startswith("/") or path.startswith("..") or not (ROOT / path).exists():
        return False
    return not anchor or (path.endswith(".md") and anchor in anchors_of(path))


def broken(page: str, text: str) -> list[str]:
    return [link.target for link in links(text) if not leads_somewhere(page, link.target)]


def test_no_link_is_broken():
    found = {page: broken(page, (ROOT / page).read_text()) for page in pages()}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_documents_that_the_code_names_exist():
    wrong = {}
    for path in sources():
        for name in NAMED.findall(path.read_text(errors="replace")):
            page, _, anchor = name.partition("#")
            if not (ROOT / page).is_file() or (anchor and anchor not in anchors_of(page)):
                wrong.setdefault(path.relative_to(ROOT).as_posix(), []).append(name)
    assert wrong == {}


@pytest.mark.parametrize(
    "text",
    [
        "[a](missing.md)",
        "[a](/docs/testing.md)",
        "[a](../../outside)",
        "[a](testing.md#no-such-heading)",
        "[a](../Makefile#L3)",
        "[a]: missing.md",
        '<img src="missing.png">',
        "`code`, [a](missing.md)",
    ],
)
def test_a_broken_link_is_found(text: str):
    assert len(broken("docs/x.md", f"# X\n\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[a](architecture.md)",
        "[a](../edgeflow)",
        "[a](../Makefile)",
        "[a](https://example.org/x.md)",
        "`[a](missing.md)`",
        "```\n[a](missing.md)\n```",
        "<!-- [a](missing.md) -->",
    ],
)
def test_others_are_not(text: str):
    assert broken("docs/x.md", text) == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("The worker in reserve", "the-worker-in-reserve"),
        ("`edgeflow serve`", "edgeflow-serve"),
        ("HOLD, STOP & reset", "hold-stop--reset"),
        ("π0 and π0.5: *flow*", "π0-and-π05-flow"),
        ("See [this](x.md)", "see-this"),
        ("chat.slots_of[]", "chatslots_of"),
    ],
)
def test_anchors_are_those_of_the_site(heading: str, anchor: str):
    assert slug(heading) == anchor
    text = re.sub(r"[`*]|\]\([^)]*\)|\[(?=\w)", "", heading)
    assert slugify(case="lower")(text, "-") == anchor


def test_a_heading_that_is_there_twice_has_no_anchor():
    assert anchors('# A\n## B\n## B\n```\n# C\n```\n<a id="d"></a>\n') == {"a", "d"}


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("docs/robots/clients.md", "robots/clients.md"),
        ("CHANGELOG.md", "develop/changelog.md"),
        ("edgeflow/embedded/policy/README.md", "develop/rooms/edgeflow/embedded/policy.md"),
        ("edgeflow/embedded/policy", "develop/rooms/edgeflow/embedded/policy.md"),
        ("examples/joints.py", "files/examples/joints.py.md"),
        ("benchmarks/results/a.json", "files/benchmarks/results/a.json"),
    ],
)
def test_files_beside_the_documents_have_a_place_on_the_site(path: str, uri: str):
    assert site_uri(path) == uri


def test_lists_stand_apart_on_the_site():
    text = "Text:\n- one\n  more\n- two\n\n1. three\n```\nx\n- four\n```"
    assert lists_apart(text) == text.replace("Text:\n", "Text:\n\n")
    assert HEADING.findall(without_fences("# A\n~~~\n# B\n~~~\n")) == ["A"]
