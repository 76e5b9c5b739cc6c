"""No document and no message installs a package of ours from an index: the name there belongs to another project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = (
    "*.md",
    "Dockerfile*",
    "Makefile",
    ".ci/*",
    "docs/**/*.md",
    "deploy/**/*",
    "examples/*",
    "scripts/*",
    "edgeflow/**/*.py",
    "client/**/*.py",
    "edgeflow/**/*.md",
    "client/*.md",
    "plugins/*/*",
)
INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv)\s+(?:pip\s+)?(?:install|add|download)\b[^\n`|&;]*")
FROM_INDEX = re.compile(r"""(?<![\w./:\-])edgeflow(?:-\w+)*(?:\[[\w,]+\])?(?=$|[\s'",;=<>~!])""")


def from_an_index(text: str) -> list[str]:
    """The commands in a text that would ask an index for a package of ours."""
    return [line for line in INSTALLS.findall(text) if FROM_INDEX.search(line)]


@pytest.mark.parametrize(
    "line", ["pip install edgeflow", "pip install -U 'edgeflow[demo]'", "uv add edgeflow-client==1"]
)
def test_such_a_command_is_found(line: str):
    assert from_an_index(f"run `{line}` first") == [line]


@pytest.mark.parametrize("line", ["pip install .", "pip install '.[onnx]'", "pip install ./edgeflow", "pip install x"])
def test_a_path_is_none(line: str):
    assert from_an_index(line) == []


def test_nothing_of_ours_is_installed_from_an_index():
    files = {path for pattern in READ for path in ROOT.glob(pattern) if path.is_file()}
    assert ROOT / "README.md" in files and ROOT / "edgeflow/cli.py" in files
    found = {str(path.relative_to(ROOT)): from_an_index(path.read_text(errors="replace")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
