"""The SDK of the last release against the service of the tree, and the other way round, as people install them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from scripts.releases.__main__ import RECORDS, last_release
from scripts.releases.wheels import CLIENT, ROOT, SERVER, build_wheels, git
from tests.service.front_process import wait_for

PROGRAM = "tests/releases/robot.py"
CHAT = {"model": "demo-chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@dataclass(frozen=True)
class Installed:
    """edgeflow as processes find it."""

    paths: tuple[Path, ...]
    robot: Path
    """The program of a robot for this SDK."""

    def run(self, *arguments: str) -> str:
        """The output of Python with this edgeflow."""
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.robot.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.paths))}


@pytest.fixture(scope="module")
def tree() -> Installed:
    return Installed((ROOT, ROOT / "client"), ROOT / PROGRAM)


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Installed:
    """The wheels of the last release, made again from its commit."""
    record = last_release()
    if record is None:
        pytest.skip(f"no release is recorded in {RECORDS.name}/: scripts/release")
    folder = tmp_path_factory.mktemp("released")
    build_wheels(record["commit"], folder, (CLIENT, SERVER), site=False)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder / "installed")
    robot = folder / "robot.py"
    robot.write_text(git("show", f"{record['commit']}:{PROGRAM}"))
    installed = Installed((folder / "installed",), robot)
    stated = installed.run(
        "-c", "import edgeflow, edgeflow_client; print(edgeflow.__file__, edgeflow_client.__version__)"
    )
    assert stated.split() == [str(folder / "installed" / "edgeflow" / "__init__.py"), record["version"]]
    return installed


@contextlib.contextmanager
def served(installed: Installed, folder: Path) -> Iterator[dict[str, int]]:
    """A service in its own process; its ports. It must end in order."""
    config, ready, log = (folder / name for name in ("config.json", "ready.json", "log"))
    ports = {name: {"port": 0} for name in ("grpc", "http", "health", "frontends")}
    config.write_text(json.dumps({**ports, "standby": False}))
    serve = ["-m", "edgeflow.cli", "serve", "--config", str(config), "--ready-file", str(ready), "--json"]
    with log.open("w") as stream:
        output = {"stdout": stream, "stderr": stream}
        process = subprocess.Popen([sys.executable, *serve], env=installed.environment, cwd=folder, **output)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield json.loads(ready.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"time"')]
    assert [line["reason"] for line in lines if line["event"] == "session_closed"] == ["client_closed"]
    assert not [line for line in lines if line["level"] == "error" or line["event"] == "fields_ignored"]


@pytest.mark.parametrize(("sdk", "service"), [("released", "tree"), ("tree", "released")])
def test_a_robot_is_served_across_the_last_release(request, tmp_path: Path, sdk: str, service: str):
    robot, server = request.getfixturevalue(sdk), request.getfixturevalue(service)
    with served(server, tmp_path) as ports:
        report = json.loads(robot.run(str(robot.robot), f"127.0.0.1:{ports['grpc']}").splitlines()[-1])
        assert Path(report.pop("sdk")).is_relative_to(robot.paths[-1])
        assert report == {"actions": 20, "rejected": 0, "reconnects": 0}
        chat = Request(
            f"http://127.0.0.1:{ports['http']}/v1/chat/completions",
            json.dumps(CHAT).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(chat, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["message"]["role"] == "assistant"
