"""A service for the duration of a demonstration: started, awaited, stopped, its exit code checked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from edgeflow_client.errors import EdgeflowError, StartError

START_S: Final = 90.0
STOP_S: Final = 15.0


class ServiceProcess:
    """`edgeflow serve` on free ports of loopback; leaving the context stops it.

    Leaving raises EdgeflowError if the service does not end with exit code 0 on SIGTERM.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="edgeflow-demo-")
        self._errors = Path(self._folder.name) / "errors"
        self._ready_file = Path(self._folder.name) / "ready.json"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.page = ""
        """Address of the live page, once the service has started."""

    def __enter__(self) -> ServiceProcess:
        return self

    def start(self, on_progress: Callable[[str, int, int], None]) -> str:
        """Start the service and return its address once it is ready; StartError carries the service's own error.

        on_progress: called with (step, done, total).
        """
        free = ("--grpc-port", "0", "--http-port", "0", "--health-port", "0", "--robots-port", "0")
        output = ("--ready-file", str(self._ready_file), "--json")
        command = [sys.executable, "-m", "edgeflow.cli", "serve", *free, *output, *self._options]
        with self._errors.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._process = process
        self._reader = threading.Thread(
            target=_read, args=(process.stdout, on_progress), name="service-output", daemon=True
        )
        self._reader.start()
        ports = self._wait_ready(process)
        self.page = f"http://127.0.0.1:{ports['http']}/"
        return f"127.0.0.1:{ports['grpc']}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            code = self._stop()
        finally:
            self._release()
        if code != 0 and error is None:
            raise EdgeflowError(f"the service ended with exit code {code}")

    def _stop(self) -> int:
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _wait_ready(self, process: subprocess.Popen[str]) -> dict[str, int]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise StartError(self._last_error() or f"the service ended with exit code {process.returncode}")
            if self._ready_file.exists() and (text := self._ready_file.read_text()):
                ports: dict[str, int] = json.loads(text)
                return ports
            time.sleep(0.05)
        raise StartError(f"the service was not ready within {START_S:g} s")

    def _last_error(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("edgeflow: ") if lines else ""

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


def _read(lines: IO[str], on_progress: Callable[[str, int, int], None]) -> None:
    """Read the pipe to its end; only progress lines are used."""
    for line in lines:
        try:
            status = json.loads(line)
        except ValueError:
            continue
        if isinstance(status, dict) and status.get("step"):
            on_progress(str(status["step"]), int(status.get("done", 0)), int(status.get("total", 0)))
