"""The resources in deploy/kv260/README.md are those of the newest result file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "deploy" / "kv260" / "README.md").read_text()
NEWEST = max((ROOT / "benchmarks" / "results").glob("kv260-estimate-*.json"))


@pytest.mark.parametrize("name", ["MACRO_MAC", "4 x MACRO_MAC", "4 x channel"])
def test_the_readme_has_the_estimate(name: str):
    figures = json.loads(NEWEST.read_text())["figures"][name]
    (row,) = [line for line in README.splitlines() if line.startswith((f"| {name} |", f"| {name} ("))]
    assert row.split(" | ")[1:] == [f"{figures[each]:,}" for each in ("DSP", "FF", "LUT")] + [
        f"{figures['logic cells']:,} |"
    ]
