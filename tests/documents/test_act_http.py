"""The shell lines of docs/robots/act-http.md send bodies that the service accepts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgeflow.service.frontends.act import parse_body
from edgeflow_client.errors import InvalidArgument

PAGE = (Path(__file__).parents[2] / "docs/robots/act-http.md").read_text()
BLOCKS = [block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "curl" in block]
JSON = "application/json"


def sent(block: str, folder: Path) -> bytes:
    """What the lines give to curl."""
    script, count = re.subn(r"curl .* -d @-", "cat", block)
    assert count == 1 and f"content-type: {JSON}" in block
    script = script.replace(".venv/bin/python", sys.executable)
    return subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, check=True, timeout=60).stdout


def test_one_picture(tmp_path: Path):
    body = parse_body(JSON, sent(BLOCKS[0], tmp_path))
    assert body.image.startswith(b"\xff\xd8") and body.instruction == "grasp the red handle"


def test_several_pictures_and_state(tmp_path: Path):
    body = parse_body(JSON, sent(BLOCKS[1], tmp_path))
    assert list(body.images) == ["top", "wrist"] and body.state == {"observation.state": [0.0] * 6}


def test_the_error_is_that_of_a_picture_that_is_not_base64():
    shown = next(block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "error" in block)
    with pytest.raises(InvalidArgument) as caught:
        parse_body(JSON, b'{"image": "abc", "instruction": "go"}')
    assert json.loads(shown)["error"]["message"] == caught.value.text
