"""A built image, run as a container runs it: user, files, health, robots, chat, signals, losses, second start.

    .venv/bin/python -m benchmarks.images.checks build/images/edgeflow-0.2.0-cpu.tar --json FILE

Needs root, unshare, nsenter and ip, and no engine: files read-only, no privileges, processes and network apart. Takes
three minutes, of which `--seconds` are a load test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from benchmarks.images.archive import ImageArchive
from benchmarks.images.container import Container, until
from edgeflow.model_paths import EMBEDDED_POLICY
from edgeflow_client.loadtest.terminal import table_console

ROOT = Path(__file__).parents[2]
READY_S = 120.0
MOVES = 60
"""The answers that the example waits for; it moves more often where some are for the same frame."""
STOP_S = 5.0
"""An orchestrator that stops a container waits longer (Docker: 10 s), then kills."""
UNPACKED_BYTES = 1_600_000_000
"""Most for an image without CUDA."""
HUB_MODEL = "edgeflow/tool-pose"
REVISION = "0" * 40
OVERLAY = "operators.json"
QUESTION = {"messages": [{"role": "user", "content": "Which phase are we in?"}], "max_tokens": 16}
ASK = """
import sys, urllib.request
url, body = "http://127.0.0.1:8000/v1/chat/completions", sys.argv[1].encode()
request = urllib.request.Request(url, body, {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
ORPHAN = "sh -c 'sleep 0.5 &'; exit 0"
"""Its child outlives it, and is then the first process's."""


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """A check that an image passed or failed."""

    name: str
    passed: bool
    found: str
    seconds: float


class ImageChecks:
    """The checks of one image in turn, on one volume."""

    def __init__(self, archive: ImageArchive, folder: Path, seconds: float) -> None:
        self._archive = archive
        self._seconds = seconds
        self._root = folder / "root"
        self._volume = folder / "volume"
        self._settings = folder / "settings"
        for each in (self._root, self._volume, self._settings):
            each.mkdir()
        self._log = folder / "container.log"
        self.results: list[ImageCheck] = []

    def run(self) -> None:
        """All checks; those after one that leaves nothing to check are left out, and the image has failed."""
        self._check("unpacked size", self._unpacked)
        with self._container() as container:
            self._check("health before it is ready", lambda: _expect(not container.healthy(), "fails"))
            self._check("ready", lambda: _ready(container))
            self._check("users", lambda: _users(container))
            self._check("files", lambda: _files(container))
            self._check("health", lambda: _told(container.run(*container.health), "ready"))
            self._check("doctor", lambda: _doctor(container))
            self._check("a robot", lambda: self._robot(container))
            self._check("a chat request", lambda: _chat(container))
            self._check(f"load test, {self._seconds:g} s", lambda: self._load(container))
            self._check("a killed worker is replaced", lambda: self._worker(container))
            self._check("orphans are reaped", lambda: _orphans(container))
            self._check("caches for the second start", lambda: self._caches(container))
            self._check("SIGKILL of everything", lambda: _killed(container))
        (self._settings / "config.json").write_text(
            json.dumps({"model": HUB_MODEL, "operators": f"{container.volume}/{OVERLAY}"})
        )
        with self._container(settings=self._settings) as container:
            self._check("ready again, from its caches", lambda: self._from_caches(container))
            self._check("a robot of the second start", lambda: self._robot(container))
            self._check("SIGTERM", lambda: _stopped(container))
        with self._container() as container:
            until(lambda: '"starting"' in self._log.read_text(), READY_S, "the first line of the log")
            self._check("SIGTERM while it starts", lambda: _stopped(container))

    def _check(self, name: str, check: Callable[[], str]) -> None:
        start = time.monotonic()
        try:
            found, passed = check(), True
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired, ValueError, OSError) as error:
            found, passed = (
                f"{error}\n{self._log.read_text(errors='replace')[-2000:] if self._log.exists() else ''}",
                False,
            )
        self.results.append(ImageCheck(name, passed, found, round(time.monotonic() - start, 2)))
        print(f"{'passed' if passed else 'FAILED'}  {name}: {found}", file=sys.stderr, flush=True)

    @contextmanager
    def _container(self, settings: Path | None = None) -> Iterator[Container]:
        with self._log.open("wb") as log:
            container = Container(self._archive, self._root, self._volume, log, settings)
            try:
                yield container
            finally:
                container.close()

    def _unpacked(self) -> str:
        self._archive.unpack(self._root)
        size = sum(layer.bytes for layer in self._archive.layers())
        bounded = not any(each.startswith("NVIDIA_") for each in self._archive.config["config"]["Env"])
        return _expect(size <= UNPACKED_BYTES or not bounded, f"{size / 1e6:.0f} MB")

    def _robot(self, container: Container) -> str:
        told = container.beside(sys.executable, str(ROOT / "examples" / "tool_pose.py"))
        moves = re.search(r"(\d+) moves", _told(told, "moves"))
        return _expect(moves is not None and int(moves[1]) >= MOVES, told.stdout.strip())

    def _load(self, container: Container) -> str:
        words = ("loadtest", "127.0.0.1:50051", "--robots", "2", "--rate", "5", "--json")
        told = container.run("edgeflow", *words, "--duration", f"{self._seconds:g}s", timeout_s=self._seconds + 60)
        assert told.returncode == 0, told.stdout[-500:]
        total = json.loads(told.stdout[told.stdout.index("{") :])["total"]
        frames = total["frames"]
        text = f"{frames['acted']} of {frames['offered']} frames acted, age p50 {total['age_ms']['p50']:.0f} ms"
        return _expect(frames["acted"] >= 0.95 * frames["offered"] > 0, text)

    def _worker(self, container: Container) -> str:
        worker = _worker_of(container)
        os.kill(worker, signal.SIGKILL)
        started = time.monotonic()
        until(lambda: worker not in container.processes() and container.healthy(), READY_S, "another worker")
        self._robot(container)
        return f"ready again after {time.monotonic() - started:.1f} s, a robot included"

    def _caches(self, container: Container) -> str:
        """Leave an overlay by `edgeflow tune`, and a model in the hub's cache as `edgeflow pull` does."""
        overlay = f"{container.volume}/{OVERLAY}"
        told = container.run("edgeflow", "tune", "--samples", "1", "--rows", "64", "--out", overlay, timeout_s=600)
        assert told.returncode == 0, told.stdout[-500:]
        model = self._volume / ".cache/huggingface/hub" / f"models--{HUB_MODEL.replace('/', '--')}"
        (model / "refs").mkdir(parents=True)
        (model / "refs" / "main").write_text(REVISION)
        shutil.copytree(EMBEDDED_POLICY, model / "snapshots" / REVISION)
        return "an overlay of operators, a model"

    def _from_caches(self, container: Container) -> str:
        ready = _ready(container)
        (opened,) = (line for line in self._events() if line.get("phase") == "ready")
        assert opened["model"] == HUB_MODEL.split("/")[1] and OVERLAY in opened["operators"], opened
        return f"{ready}, model and operators from the volume, without a network"

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._log.read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)


def _ready(container: Container) -> str:
    start = time.monotonic()
    until(container.healthy, READY_S, "ready")
    return f"{time.monotonic() - start:.1f} s after the start"


def _users(container: Container) -> str:
    processes = container.processes()
    users = {each["Uid"].split()[0] for each in processes.values()}
    privileged = [each["Name"] for each in processes.values() if int(each["CapEff"], 16) or each["NoNewPrivs"] != "1"]
    return _expect("0" not in users and not privileged, f"{', '.join(sorted(users))} in {len(processes)} processes")


def _files(container: Container) -> str:
    command = "touch /here /opt/edgeflow/here; touch /tmp/here && echo tmp; touch here && echo volume"
    told = container.run("sh", "-c", command).stdout
    refused = told.count("Read-only file system")
    return _expect(refused == 2 and "tmp\nvolume" in told, "read-only but for /tmp and the volume")


def _doctor(container: Container) -> str:
    told = container.run("edgeflow", "doctor", "--json")
    assert told.returncode == 0, told.stdout[-800:]
    counts = Counter(line["verdict"] for line in json.loads(told.stdout))
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _chat(container: Container) -> str:
    told = container.beside(sys.executable, "-c", ASK, json.dumps(QUESTION))
    assert told.returncode == 0, told.stdout[-500:]
    answer = json.loads(told.stdout)["choices"][0]["message"]["content"]
    return _expect(bool(answer), repr(answer))


def _worker_of(container: Container) -> int:
    """The child of the first process that holds most memory."""
    number = str(container.pid)
    ours = {pid: each for pid, each in container.processes().items() if each["PPid"] == number}
    return max(ours, key=lambda pid: int(ours[pid]["VmRSS"].split()[0]))


def _orphans(container: Container) -> str:
    before = len(container.processes())
    container.run("sh", "-c", ORPHAN)
    assert any(each["Name"] == "sleep" for each in container.processes().values()), "no orphan was made"
    until(lambda: not any(each["Name"] == "sleep" for each in container.processes().values()), 10, "reaped")
    dead = [each["Name"] for each in container.processes().values() if each["State"].startswith("Z")]
    return _expect(not dead, f"none of {before + 1} processes is left as a zombie")


def _killed(container: Container) -> str:
    processes = container.processes()
    container.kill(signal.SIGKILL)
    return _expect(not any(Path(f"/proc/{pid}").exists() for pid in processes), f"{len(processes)} processes are gone")


def _stopped(container: Container) -> str:
    start = time.monotonic()
    code = container.kill(signal.SIGTERM)
    taken_s = time.monotonic() - start
    return _expect(code == 0 and taken_s < STOP_S, f"exit code {code} after {taken_s:.2f} s")


def _told(told: subprocess.CompletedProcess[str], words: str) -> str:
    lines = told.stdout.strip().splitlines() or [""]
    assert told.returncode == 0 and words in told.stdout, f"exit code {told.returncode}: {told.stdout[-800:]}"
    return next(line.strip() for line in lines if words in line)


def _expect(condition: bool, found: str) -> str:
    assert condition, found
    return found


def main() -> None:
    """Check an image; exit code 1 when a check failed."""
    parser = options(__doc__)
    parser.add_argument("archive", type=Path, help="of scripts/build-image")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the load test")
    arguments = parser.parse_args()
    archive, facts = ImageArchive(arguments.archive), machine_facts()
    with tempfile.TemporaryDirectory(prefix="edgeflow-image-") as folder:
        checks = ImageChecks(archive, Path(folder), arguments.seconds)
        checks.run()
    table = Table("check", "result", "seconds", "found")
    for each in checks.results:
        table.add_row(each.name, "passed" if each.passed else "FAILED", f"{each.seconds:.1f}", each.found)
    table_console().print(table)
    layers = [asdict(layer) for layer in archive.layers()]
    keep(arguments.json, {**facts, "layers": layers, "checks": [asdict(each) for each in checks.results]})
    raise SystemExit(0 if all(each.passed for each in checks.results) else 1)


if __name__ == "__main__":
    main()
