"""One version in every file that states it, and files that hosts and readers look for."""

from __future__ import annotations

import re
from pathlib import Path

import edgeflow_client

ROOT = Path(__file__).parents[1]


def stated(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert match, path
    return match[1]


def test_one_version_is_stated_everywhere():
    version = stated("pyproject.toml", r'^version = "(.+)"')
    assert version == edgeflow_client.__version__
    assert version == stated("client/pyproject.toml", r'^version = "(.+)"')
    assert version == stated("CITATION.cff", r"^version: (.+)")
    assert version == stated("CHANGELOG.md", r"^## (\d\S*)")
    assert version == stated("README.md", r"version (\d+\.\d+\.\d+)")
    assert stated("CHANGELOG.md", r"^## \S+ \W+ (.+)") == stated("CITATION.cff", r'^date-released: "(.+)"')
