"""A class name means one thing in the whole tree, so that a search for it leads to one place."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("edgeflow", "client/edgeflow_client", "benchmarks", "examples", "plugins", "scripts", "deploy", "tests")
CLASS = re.compile(r"^[ \t]*class (\w+)[:(]", re.MULTILINE)
TWICE = {
    "Arm": "the examples are single files, each to be copied without the other",
}
"""Names that may stand twice, with the reason; at most ten."""


def is_python(path: Path) -> bool:
    """True for modules, and for scripts without a suffix."""
    if path.suffix or not path.is_file():
        return path.suffix == ".py"
    return path.read_bytes()[:40].startswith(b"#!/usr/bin/env python3")


def test_no_class_name_stands_twice():
    places: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.parent.name == "rpc" or not is_python(path):
                continue
            for match in CLASS.finditer(path.read_text()):
                places[match[1]].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWICE} == {}
    assert sorted(twice) == sorted(TWICE), "an exception that is not needed any more"
    assert len(TWICE) <= 10
