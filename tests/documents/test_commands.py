"""The commands that the documents show exist, with these options and settings."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from edgeflow.config.service import ServiceConfig, keys_of
from scripts.documents.commands import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KNOWN = {
    command.name: {name.split()[0] for option in command.options for name in option.names}
    for group in commands()
    for command in group
}
OPEN_SECTIONS = ("policy", "cameras", "state", "trajectory.limits")
"""Sections whose keys the family, the policy or the robot has."""


def faults(line: str) -> list[str]:
    """What a line of a shell calls edgeflow with that edgeflow does not have."""
    words = shlex.split(line, comments=True)
    places = [at for at, word in enumerate(words) if re.fullmatch(r"(?:\.venv/bin/)?edgeflow", word)]
    return [fault for at in places for fault in _faults(words[at + 1 :])]


def _faults(rest: list[str]) -> list[str]:
    words = list(takewhile(lambda word: word not in ("|", "&&", ";", "&"), rest))
    name = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in KNOWN), None)
    if name is None:
        wanted = bool(words) and words[0][:1].islower()  # COMMAND stands for any
        return [words[0]] if wanted else []
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    found = [f"{name} {option}" for option in options if option not in KNOWN[name] | {"--help"}]
    if name != "serve":
        return found
    keys = [after.partition("=")[0] for word, after in pairwise(words) if word == "--set"]
    return found + [f"--set {key}" for key in keys if key != "KEY" and not _is_key(key)]


def _is_key(key: str) -> bool:
    return key in keys_of(ServiceConfig) or key.startswith(tuple(f"{section}." for section in OPEN_SECTIONS))


def lines(page: str) -> list[str]:
    """The lines of a page's shell blocks, continued ones as one."""
    blocks = re.findall(r"```(?:bash|sh|shell)\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "edgeflow" in line]


@pytest.mark.parametrize(
    "line", ["edgeflow serv", "edgeflow serve --models x", "edgeflow serve --set chat.length=1", "edgeflow config show"]
)
def test_a_line_that_cannot_run_is_found(line: str):
    assert len(faults(f"{line} | tee --append log")) == 1


def test_commands_in_the_documents_exist():
    shown = {str(page.relative_to(ROOT)): lines(page.read_text()) for page in PAGES}
    assert sum(map(len, shown.values())) > 50
    wrong = {page: [fault for line in found for fault in faults(line)] for page, found in shown.items()}
    assert {page: found for page, found in wrong.items() if found} == {}
