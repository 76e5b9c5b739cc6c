"""Every event of the log stands on docs/operate/logs.md, under its level."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeflow.service.observe.log import ERRORS, WARNINGS
from edgeflow_client.types import Command

ROOT = Path(__file__).parents[3]
WRITTEN = re.compile(r"""(?:\b(?:event|audit)\(\s*|event_line\([^)"]*\), )["'](\w+)["']""")
LEVELS = re.findall(r"^\*\*(\w+)(.*?)(?=^\*\*|^## What)", (ROOT / "docs/operate/logs.md").read_text(), re.M | re.S)


@pytest.fixture
def listed() -> dict[str, set[str]]:
    rows = {level: re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for level, text in LEVELS}
    return {level: set(re.findall(r"`(\w+)`", " ".join(found))) for level, found in rows.items()}


def test_events_of_a_level_stand_under_it(listed: dict[str, set[str]]):
    assert listed["Errors"] == ERRORS and listed["Warnings"] == WARNINGS


def test_every_event_is_listed_and_no_other(listed: dict[str, set[str]]):
    code = "".join(
        path.read_text() for room in ("service", "commands") for path in (ROOT / "edgeflow" / room).rglob("*.py")
    )
    written = {*WRITTEN.findall(code), *(each.value for each in Command if each is not Command.ACT)}
    assert set().union(*listed.values()) == written
