"""The pages about the code name only files and classes that exist, so that renaming something finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABOUT_CODE = ("formats", "gpu-suite", "kernels", "testing", "writing")
PAGES = (
    "docs/architecture.md",
    *(f"docs/develop/{name}.md" for name in ABOUT_CODE),
    "edgeflow/**/README.md",
    "client/README.md",
)
CODE = ("edgeflow", "client", "benchmarks", "scripts", "tests", "examples", "deploy", "proto")
SKIPPED = {".venv", "build", "__pycache__", "node_modules"}
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\([^)]*\)")
QUOTED = re.compile(r"`([^`\n]+)`")
FILES = re.compile(r"`[^`]+`(?:, `[^`]+`)*")
MODULE = re.compile(r"[\w./-]+\.(?:py|cpp|h|sh)")
CLASS = re.compile(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?")
OTHERS = {"BatchAttention", "awq/utils/packing_utils.py"}
"""Classes and files of other projects."""
COMMAND = re.compile(r"edgeflow [a-z]")
DEFINED = re.compile(r"^(?:class|message|enum|def|async def) (\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)


def problems(path: Path, text: str) -> list[str]:
    """The files and classes that a page names and that are not there. path: of the page."""
    plain = LINK.sub("]", FENCED.sub("", text))
    found = [*_missing_files(path, plain), *_missing_classes(plain), *_misplaced(path, plain)]
    return list(dict.fromkeys(found))


def _missing_files(path: Path, text: str) -> Iterator[str]:
    for name in QUOTED.findall(text):
        if MODULE.fullmatch(name) and name not in OTHERS and not _places(path, name):
            yield name


def _missing_classes(text: str) -> Iterator[str]:
    for name in QUOTED.findall(text):
        found = CLASS.fullmatch(name)
        if found is None or found[1] in OTHERS:
            continue
        files = _classes().get(found[1], ())
        if not files or (found[2] and not any(re.search(rf"\b{found[2]}\b", _read(each)) for each in files)):
            yield name


def _misplaced(path: Path, text: str) -> Iterator[str]:
    """Names in the first column of a table that no file in the second one defines."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 2 or not FILES.fullmatch(cells[1]):
            continue
        names = [name for name in QUOTED.findall(cells[0]) if name.isidentifier()]
        files = [place for name in QUOTED.findall(cells[1]) for place in _places(path, name)]
        defined = {name for file in files for pair in DEFINED.findall(file.read_text()) for name in pair}
        yield from (f"{name}, not in {cells[1]}" for name in names if files and name not in defined)


def _places(path: Path, name: str) -> list[Path]:
    """The files that a page may mean by a name: in its folder or one below, or by the end of their path."""
    inside = path.parent if path.name == "README.md" else ROOT
    near = [inside, ROOT, ROOT / "edgeflow", *(inside.glob("*") if inside != ROOT else ())]
    found = [folder / name for folder in near if MODULE.fullmatch(name) and (folder / name).is_file()]
    return found or [ROOT / each for each in _files() if "/" in name and f"/{each}".endswith(f"/{name}")]


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


def missing_commands(text: str) -> list[str]:
    """The commands that a page quotes and that the reference of commands does not have."""
    known = re.findall(r"^### `edgeflow ([\w -]+)`", _read("docs/reference/commands.md"), re.MULTILINE)
    quoted = [name.removeprefix("edgeflow ") for name in QUOTED.findall(FENCED.sub("", text)) if COMMAND.match(name)]
    return [
        name
        for name in quoted
        if not any(f"{each} ".startswith(f"{name} ") or f"{name} ".startswith(f"{each} ") for each in known)
    ]


def pages() -> list[Path]:
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(path for path in found if "embedded" not in path.parts)


def test_pages_name_what_exists():
    found = {str(path.relative_to(ROOT)): problems(path, path.read_text()) for path in pages()}
    assert {path: names for path, names in found.items() if names} == {}


def test_documents_quote_commands_that_exist():
    every = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *pages()]
    found = {str(path.relative_to(ROOT)): missing_commands(path.read_text()) for path in every}
    assert {path: names for path, names in found.items() if names} == {}
    assert missing_commands("`edgeflow serve --set a=1`, `edgeflow config`, `edgeflow sever`") == ["sever"]


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


def test_a_table_names_the_file_of_each_class():
    page = ROOT / "edgeflow/scheduler/README.md"
    assert problems(page, "| `Scheduler`, `row_budget_of` | `scheduler.py` | plans |\n") == []
    assert problems(page, "| `Scheduler` | `plan.py` | plans |\n") == ["Scheduler, not in `plan.py`"]


def test_a_page_beside_its_room_names_files_by_their_names_in_it():
    page = ROOT / "edgeflow/scheduler/README.md"
    assert problems(page, "`session.py`") == []
    assert problems(page, "`supervisor.py`") == ["supervisor.py"]
