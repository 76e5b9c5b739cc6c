"""The Python lines of docs/start/in-process.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/start/in-process.md").read_text()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert [chunk.horizon for chunk in names["chunks"].values()] == [names["chunk"].horizon] * 4
    assert len(names["policy"].inputs.cameras) == 2, "the policy of the settings"
    assert names["answer"].text == "It holds the red cube."
