"""A service as users start it, in separate processes on free ports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.memory import resident_bytes

START_S = 120.0
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A front that serves at `address`. log: file with its standard error."""

    address: str
    pid: int
    log: Path

    def resident(self) -> int:
        """Resident bytes of the front process."""
        return resident_bytes(self.pid)

    def complaints(self) -> list[str]:
        """Log lines that no client should be able to cause."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "Traceback" in line or '"incident"' in line or "Error:" in line]


@contextlib.contextmanager
def serving(**config: object) -> Iterator[Serving]:
    """Run a service. config: keys of the configuration file, in addition to free ports."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        settings = {"grpc": {"port": 0}, "http": {"port": 0}, "health": {"port": 0}, **config}
        (folder / "config.json").write_text(json.dumps(settings))
        ready, log = folder / "ready.json", folder / "log"
        command = [sys.executable, "-m", "edgeflow.cli", "serve"]
        command += ["--config", str(folder / "config.json"), "--ready-file", str(ready)]
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
            try:
                port = json.loads(_wait(ready, process, log))["grpc"]
                yield Serving(f"127.0.0.1:{port}", process.pid, log)
            finally:
                process.terminate()
                process.wait(STOP_S)


def _wait(ready: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the service did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    return ready.read_text()
