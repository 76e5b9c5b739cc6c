"""Triton scripts in processes of their own: the interpreter must be chosen before a kernel is imported, and a read far
out of bounds ends its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(script: str, *arguments: str, interpret: bool) -> list[dict]:
    """The JSON lines that a script of this folder prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(HERE.parents[1])} | ({"TRITON_INTERPRET": "1"} if interpret else {})
    command = [sys.executable, str(HERE / script), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout[-300:]}\n{result.stderr[-3000:]}"
    return [json.loads(line) for line in result.stdout.splitlines()]
