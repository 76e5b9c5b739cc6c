"""Configuration files in the documents are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edgeflow.config.service import ServiceConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/**/*.md"))


def examples(text: str) -> list[dict[str, object]]:
    """The JSON objects of a page that have keys of the configuration only."""
    found = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    return [each for each in found if isinstance(each, dict) and each.keys() <= ServiceConfig.model_fields.keys()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_they_are_valid(path: Path):
    for example in examples(path.read_text()):
        ServiceConfig.model_validate(example)


def test_there_are_many():
    assert sum(len(examples(path.read_text())) for path in PAGES) > 20
