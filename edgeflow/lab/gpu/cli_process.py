"""Runs the `edgeflow` command in separate processes, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from edgeflow.lab.gpu.setting import SkipError

COMMAND = (sys.executable, "-m", "edgeflow.cli")
IMPORTED = (
    *("fastapi", "grpc", "grpc_health", "grpc_reflection", "jinja2", "llguidance", "msgpack", "prometheus_client"),
    *("pydantic", "rich", "simplejpeg", "typer", "uvicorn"),
)
"""What the commands import beyond torch, numpy, Pillow, safetensors and tokenizers."""


def require_packages() -> None:
    """SkipError where a package that the commands import is missing."""
    lacking = [name for name in IMPORTED if find_spec(name) is None]
    if lacking:
        raise SkipError(f"this Python lacks {', '.join(lacking)}: see scripts/gpu-wheels and --wheels")


def run_command(arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """`edgeflow` with these arguments, awaited; TimeoutExpired, and the process is killed, after `timeout_s`."""
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=max(timeout_s, 0.0), check=False)


def last_line(text: str) -> str:
    """The last line of a command's errors, which says what is wrong."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("edgeflow: ")[:300] if lines else ""
