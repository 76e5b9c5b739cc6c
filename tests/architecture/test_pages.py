"""The pages about the code name only files and classes that exist, so that renaming something finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "docs/develop/*.md", "edgeflow/**/README.md", "client/README.md")
CODE = ("edgeflow", "client", "benchmarks", "scripts", "tests", "examples", "deploy", "proto")
SKIPPED = {".venv", "build", "__pycache__", "node_modules"}
LINK = re.compile(r"\]\([^)]*\)")
QUOTED = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"[\w./-]+\.(?:py|cpp|h|sh)")
CLASS = re.compile(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?")
OTHERS = {"BatchAttention"}
"""Classes of other projects."""
DEFINED = re.compile(r"^(?:class|message|enum) (\w+)|^(\w+)(?:: TypeAlias)? = ", re.MULTILINE)


def problems(path: Path, text: str) -> list[str]:
    """The files and classes that a page names and that are not there. path: of the page."""
    return [*_missing_files(path, text), *_missing_classes(text)]


def _missing_files(path: Path, text: str) -> Iterator[str]:
    inside = path.parent if path.name == "README.md" else ROOT
    for name in dict.fromkeys(_names(text)):
        if not MODULE.fullmatch(name):
            continue
        near = [inside, ROOT, ROOT / "edgeflow", *(inside.glob("*") if inside != ROOT else ())]  # of the page's folders
        if any((folder / name).is_file() for folder in near):
            continue
        if "/" not in name or not any(f"/{each}".endswith(f"/{name}") for each in _files()):
            yield name


def _missing_classes(text: str) -> Iterator[str]:
    for name in dict.fromkeys(_names(text)):
        found = CLASS.fullmatch(name)
        if found is None or found[1] in OTHERS:
            continue
        files = _classes().get(found[1], ())
        if not files or (found[2] and not any(re.search(rf"\b{found[2]}\b", _read(each)) for each in files)):
            yield name


def _names(text: str) -> list[str]:
    return QUOTED.findall(LINK.sub("]", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)))


@cache
def _files() -> tuple[str, ...]:
    """All files of the code, relative to the repository."""
    return tuple(
        str(path.relative_to(ROOT))
        for folder in CODE
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".proto", ".cpp", ".h", ".sh") and not SKIPPED & set(path.parts)
    )


@cache
def _read(name: str) -> str:
    return (ROOT / name).read_text()


@cache
def _classes() -> dict[str, list[str]]:
    """The files that define each class, message of the protocol or name of a module."""
    found: dict[str, list[str]] = {}
    for name in _files():
        for match in DEFINED.finditer(_read(name)):
            found.setdefault(match[1] or match[2], []).append(name)
    return found


def pages() -> list[Path]:
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(path for path in found if "embedded" not in path.parts)


def test_pages_name_what_exists():
    found = {str(path.relative_to(ROOT)): problems(path, path.read_text()) for path in pages()}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_room_has_a_page_and_architecture_is_short():
    rooms = ("scheduler", "engine", "kernels", "models", "policies", "worker", "service", "ipc", "config", "text")
    wanted = {ROOT / "edgeflow" / room / "README.md" for room in (*rooms, "artifacts", "lab")}
    assert wanted <= set(pages())
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) <= 250


@pytest.mark.parametrize("name", ["scheduler/sessions.py", "elsewhere.py", "Schedulers", "Scheduler.fetch"])
def test_what_is_gone_is_found(name: str):
    assert problems(ROOT / "docs/architecture.md", f"See `{name}`.\n") == [name]


@pytest.mark.parametrize("name", ["scheduler/session.py", "edgeflow/cli.py", "Scheduler", "Scheduler.plan", "kv"])
def test_what_exists_is_not(name: str):
    assert problems(ROOT / "docs/architecture.md", f"See `{name}`.\n\n```\n`Gone` `gone/gone.py`\n```\n") == []


def test_a_page_beside_its_room_names_files_by_their_names_in_it():
    page = ROOT / "edgeflow/scheduler/README.md"
    assert problems(page, "`session.py`") == []
    assert problems(page, "`supervisor.py`") == ["supervisor.py"]
