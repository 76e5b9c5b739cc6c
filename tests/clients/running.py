"""Services for robots' own clients, and the clients, each in its environment."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.service.front_process import wait_for
from tests.service.processes import children, command
from tests.stub_policy import environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class RobotsService:
    """A running service. robots: the port of robots' own clients. folder: of its files."""

    process: subprocess.Popen[bytes]
    robots: int
    folder: Path

    @property
    def ready(self) -> bool:
        """True once the policy is loaded."""
        return (self.folder / "ready.json").exists()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of its log so far with this event."""
        log = (self.folder / "log").read_text()
        lines = [
            json.loads(line) for line in log.splitlines(keepends=True) if line.startswith("{") and line[-1] == "\n"
        ]
        return [line for line in lines if line.get("event") == name]

    @property
    def worker(self) -> int:
        """The process that runs the policy."""
        return next(each for each in children(self.process.pid) if "edgeflow.worker.start" in command(each))


@contextlib.contextmanager
def serving(
    folder: Path, model: Path, *, robots: int = 0, loaded: bool = True, **config: Any
) -> Iterator[RobotsService]:
    """Run the command with the stub policy. robots: its port; with loaded false, it is given and nothing is awaited."""
    path, ready, log = (folder / name for name in ("config.json", "ready.json", "log"))
    ports = {name: {"port": 0} for name in ("grpc", "http", "health")}
    frontends = {"port": robots, **config.pop("frontends", {})}
    settings = {"model": str(model), "chat": {"enabled": False}, "standby": False, "frontends": frontends}
    path.write_text(json.dumps({**settings, **ports, **config}))
    command = [sys.executable, "-m", "edgeflow.cli", "serve", "--config", str(path), "--ready-file", str(ready)]
    with log.open("w") as stream:
        process = subprocess.Popen([*command, "--json"], stdout=stream, stderr=stream, env=environment())
    try:
        if loaded:
            wait_for(lambda: ready.exists() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            robots = json.loads(ready.read_text())["robots"]
        yield RobotsService(process, robots, folder)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


def new_token(folder: Path) -> tuple[Path, str]:
    """A file of tokens with one that may control robots, and this token."""
    tokens, secret = folder / "tokens.json", folder / "arm.token"
    new = [sys.executable, "-m", "edgeflow.cli", "token", "new", "--principal", "arm", "--role", "control"]
    subprocess.run([*new, "--tokens", str(tokens), "--out", str(secret)], check=True, capture_output=True)
    return tokens, secret.read_text().strip()


def free_port() -> int:
    """A port for a service to which clients connect before it says which it has."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """True once a client can connect."""
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def client(name: str) -> Path:
    """The Python of a client's environment; skips the test where scripts/clients has not made it."""
    folder = ROOT / ".clients" / name
    if not (folder / "ready").exists():
        pytest.skip(f"no {folder}: scripts/clients {name}")
    return folder / "bin" / "python"


def started(name: str, port: int, observation: Mapping[str, Any], *steps: str) -> subprocess.Popen[str]:
    """A client's program, tests/clients/NAME_session.py, at the beginning of its steps; see there."""
    program = ROOT / "tests" / "clients" / f"{name}_session.py"
    command = [str(client(name)), str(program), str(port), json.dumps(observation), *steps]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(program: subprocess.Popen[str]) -> dict[str, Any]:
    """The report of a client's program."""
    output, errors = program.communicate(timeout=200)
    assert program.returncode == 0, errors
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def session(name: str, port: int, observation: Mapping[str, Any], *steps: str) -> dict[str, Any]:
    """The report of a client's program after all of its steps."""
    return finished(started(name, port, observation, *steps))
