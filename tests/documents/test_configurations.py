"""The configurations that the documents show are accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path

from edgeflow.config.service import ServiceConfig

ROOT = Path(__file__).parents[2]


def shown() -> dict[str, dict[str, object]]:
    """The JSON blocks that are configurations, by page and place: every key is one of the configuration's."""
    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for place, block in enumerate(re.findall(r"```json\n(\{.*?)```", page.read_text(), re.DOTALL)):
            values = json.loads(block)
            if values.keys() <= ServiceConfig.model_fields.keys():
                found[f"{page.relative_to(ROOT)} {place}"] = values
    return found


def test_configurations_in_the_documents_are_accepted():
    blocks = shown()
    assert any("robots/chunks.md" in place for place in blocks)
    for place, values in blocks.items():
        assert ServiceConfig.model_validate(values), place
