"""A service in processes of its own, started by its command."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.service.front_process import wait_for


@contextlib.contextmanager
def served(folder: Path, model: str, **config: Any) -> Iterator[str]:
    """Run the command, as a person would, with its files in a folder; the address of its gRPC server."""
    path, ready, log = (folder / name for name in ("config.json", "ready.json", "log"))
    ports = {name: {"port": 0} for name in ("grpc", "http", "health", "frontends")}
    settings = {"model": model, "chat": {"enabled": False}, "standby": False}
    path.write_text(json.dumps({**settings, **ports, **config}))
    command = [sys.executable, "-m", "edgeflow.cli", "serve", "--config", str(path), "--ready-file", str(ready)]
    with log.open("w") as stream:
        process = subprocess.Popen([*command, "--json"], stdout=stream, stderr=stream)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield f"127.0.0.1:{json.loads(ready.read_text())['grpc']}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
