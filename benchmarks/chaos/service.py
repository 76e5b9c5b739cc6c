"""The service as its users run it: `edgeflow serve` in separate processes, observed from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.process_facts import alive, children, command, is_idle, name, started_at, wait_for
from benchmarks.chaos.robots import OVERCOMMIT
from edgeflow.service.fork_server import NAME as FORK_SERVER
from edgeflow.service.worker.process import ENTRY

ROOT = Path(__file__).parents[2]
READY_S = 300.0  # a large model is read, and its reserve stands by
START_S = 120.0  # of a worker
EXIT_S = 30.0
METRICS_FROM = "127.0.0.9"  # connections are counted per address, and 127.0.0.1 is shared by all
MANY_CRASHES = {"timing": {"crash_limit": 1000}}
"""Part of a configuration: allows workers to be lost as often as scenarios kill them."""
IDLE_LOOKS = 10  # in a row, by which a reserve has loaded everything
SAMPLE = re.compile(r"^([a-z0-9_]+)(\{.*\})? ([-+.\deEinfNa]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of a service."""

    output: int | None = None
    errors: int | None = None
    """Both: file descriptors. None: /dev/null for the output, and for the errors the log that `events` reads."""
    under: Sequence[str] = ()
    """The command that runs the service's command, such as a tracer."""
    environment: Mapping[str, str] = field(default_factory=dict)


class ServiceUnderTest:
    """A service that starts and ends with the context. probes: options of benchmarks.chaos.observed_service."""

    def __init__(self, config: dict[str, Any], probes: Sequence[str] = (), around: Surroundings | None = None) -> None:
        self._around = around or Surroundings()
        self._folder = tempfile.TemporaryDirectory(prefix="edgeflow-chaos-")
        self._path = Path(self._folder.name)
        (self._path / "config.json").write_text(json.dumps(config))
        if self._around.under:
            self._path.chmod(0o777)  # the command may run it as another user
        program = ["-m", "benchmarks.chaos.observed_service", *probes, "--"] if probes else ["-m", "edgeflow.cli"]
        self._command = [*self._around.under, sys.executable, *program]
        self._command += ["serve", "--config", str(self._path / "config.json"), "--json"]
        self._command += ["--grpc-port", "0", "--http-port", "0", "--health-port", "0", "--robots-port", "0"]
        self._command += ["--ready-file", str(self._path / "ready.json")]
        self._ports: dict[str, int] = {}

    def __enter__(self) -> ServiceUnderTest:
        around = self._around
        output = subprocess.DEVNULL if around.output is None else around.output
        environment = {**os.environ, **around.environment}
        with self.log.open("w") as log:
            errors = log if around.errors is None else around.errors
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=output, stderr=errors, env=environment)
        try:
            self._wait_ready()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports['grpc']}"

    def port(self, name: str) -> int:
        """The port of `grpc`, `http` or `health`."""
        return self._ports[name]

    @property
    def pid(self) -> int:
        """Process id of the front."""
        return self._process.pid

    def worker(self) -> int:
        """Process id of the worker: the older one, if another is in reserve. RuntimeError if there is none."""
        found = self._engines()
        if not found:
            raise RuntimeError("the service has no worker")
        return found[0]

    def reserve(self) -> int | None:
        """Process id of the worker in reserve; None without one."""
        younger = self._engines()[1:]
        return younger[0] if younger else None

    def child(self, role: str) -> int | None:
        """Process id of the `gateway` or the `chat` front; None while there is none."""
        forked = (pid for server in children(self.pid) for pid in children(server))
        return next((pid for pid in forked if name(pid) == f"ef-{role}"), None)

    def fork_server(self) -> int | None:
        """Process id of the fork server, which starts these; None while there is none."""
        return next((pid for pid in children(self.pid) if name(pid) == FORK_SERVER), None)

    def wait_reserve(self) -> None:
        """Wait until a reserve stands by for the current worker; TimeoutError."""
        ready = self.events("worker_ready")[-1]["time"]
        self.wait_event("worker_standby", ready, START_S)

    def wait_idle_reserve(self, limit_s: float = START_S) -> None:
        """Wait until a reserve has loaded and uses no processor, where there is no log to read; TimeoutError."""
        looks = 0

        def idle() -> bool:
            nonlocal looks
            reserve = self.reserve()
            looks = looks + 1 if reserve is not None and is_idle(reserve) else 0
            return looks >= IDLE_LOOKS

        if wait_for(idle, limit_s, 0.1) is None:
            raise TimeoutError(f"no worker in reserve within {limit_s:g} s")

    def cold_start_s(self) -> float:
        """How long its first worker took to start; its log must be readable."""
        return self.wait_event("worker_ready", 0.0, 1.0) - started_at(self.worker())

    def events(self, name: str, since: float = 0.0, **values: str) -> list[dict[str, Any]]:
        """Log lines with this event name and these values, from `since` on (wall clock)."""
        found = []
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                event = json.loads(line)
                fits = event.get("event") == name and all(event.get(key) == value for key, value in values.items())
                if fits and event["time"] >= since - 0.0005:  # times are rounded to milliseconds
                    found.append(event)
        return found

    @property
    def log(self) -> Path:
        """The file of the service's log."""
        return self._path / "log"

    def log_end(self) -> str:
        """The last lines of the service's log."""
        return self.log.read_text()[-2000:]

    def wait_event(self, name: str, since: float, timeout_s: float, **values: str) -> float:
        """Wall time of the first such event; TimeoutError."""
        if wait_for(lambda: bool(self.events(name, since, **values)), timeout_s, 0.02) is None:
            raise TimeoutError(f"no {name} {values} within {timeout_s:g} s")
        return float(self.events(name, since, **values)[0]["time"])

    def metrics(self) -> dict[str, float]:
        """Metrics by name, each summed over its labels."""
        source = (METRICS_FROM, 0)
        link = http.client.HTTPConnection("127.0.0.1", self._ports["http"], timeout=10, source_address=source)
        with contextlib.closing(link):
            link.request("GET", "/metrics")
            answer = link.getresponse()
            text = answer.read().decode()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"/metrics: status {answer.status}: {text[:200]}")
        totals: dict[str, float] = {}
        for line in text.splitlines():
            if found := SAMPLE.match(line):
                totals[found[1]] = totals.get(found[1], 0.0) + float(found[3])
        return totals

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to control."""
        self._process.send_signal(number)

    def wait_exit(self, timeout_s: float) -> int | None:
        """Wait for control's exit code; None if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _wait_ready(self) -> None:
        ready = self._path / "ready.json"
        if wait_for(lambda: ready.exists() or self._process.poll() is not None, READY_S, 0.02) is None:
            raise TimeoutError(f"the service was not ready within {READY_S:g} s")
        if not ready.exists():
            raise RuntimeError(f"the service ended while starting:\n{self.log_end()}")
        self._ports = json.loads(ready.read_text())
        if self._around.errors is None:
            self.wait_event("worker_standby", 0.0, READY_S)
        else:
            self.wait_idle_reserve(READY_S)

    def _engines(self) -> list[int]:
        """Processes of the engine, oldest first."""
        return sorted((pid for pid in children(self.pid) if ENTRY in " ".join(command(pid))), key=_age)

    def _release(self) -> None:
        """End the service in any state that the scenario left it in."""
        workers = children(self.pid) if alive(self.pid) else []
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            if self.wait_exit(EXIT_S) is None:
                self._process.kill()
                self._process.wait()
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()


def _age(pid: int) -> float:
    """A key that is lowest for the oldest process, and highest for one that is gone."""
    try:
        return started_at(pid)
    except OSError:
        return math.inf


@contextlib.contextmanager
def light_policy(robots: int, **settings: object) -> Iterator[dict[str, Any]]:
    """A service's configuration for this many robots, with a policy so small that it leaves the processors alone.

    The checkpoint is there while the context lasts.
    """
    from tests.tiny_checkpoint import write_checkpoint  # imports torch, which robots do without

    with tempfile.TemporaryDirectory(prefix="edgeflow-light-") as folder:
        yield {
            "model": str(write_checkpoint(Path(folder))),
            "alias": "light",
            "max_sessions": robots,
            **OVERCOMMIT,
            **settings,
        }
