"""The README shows what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_robot_loop_is_that_of_the_example_that_runs():
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown in (ROOT / "examples" / "joints.py").read_text()
    assert len(shown.splitlines()) < 30


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
