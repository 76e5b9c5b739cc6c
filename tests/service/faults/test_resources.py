"""Suspended processes and a wall clock that jumps: robots do not notice, or act again with the same worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.chaos.resources import DAY_S, JUMPS
from edgeflow.service.frontends.grpc.stream import StreamCall
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.front_process import BlockingRobot, Front, front, robot, wait_for
from tests.service.processes import forked, runs, state

PROGRESS_MS = 1500  # more than the second between two pings


def act(one: BlockingRobot) -> pb.Action:
    """Send frames until one is acted on: on a busy machine an action may be too old."""
    one.frame()
    while (action := one.until("action").action).command != pb.COMMAND_ACT:
        assert one.sent < 1000
        one.frame()
    return action


def events(folder: Path) -> list[dict]:
    """The lines of the log."""
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.endswith("}")]


def gateway(made: Front) -> int | None:
    return forked(made.process.pid, "ef-gateway")


def suspended_for(seconds: float, pid: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Suspend a process for this long; its duration is what is tested."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + seconds
    wait_for(lambda: state(pid) == "T")
    meanwhile()
    wait_for(lambda: time.monotonic() > until)
    os.kill(pid, signal.SIGCONT)


def stopped(made: Front) -> None:
    made.signal(signal.SIGTERM)
    assert made.ended() == 0


def test_control_that_was_suspended_keeps_its_worker_and_its_robots(checkpoint, tmp_path: Path):
    """It was suspended for longer than it lets a worker be silent: that silence is its own."""
    with front(checkpoint, tmp_path, timing__worker_progress_ms=PROGRESS_MS) as made, robot(made.address) as one:
        one.open()
        act(one)
        worker = made.worker()
        suspended_for(1.4 * PROGRESS_MS / 1000, made.process.pid, one.frame)
        act(one)
        assert made.worker() == worker
        assert not {"drain", "worker_ready", "WORKER_LOST"} & set(one.kinds())
        stopped(made)


class LateWrites:
    """The context of a call whose writes end soon after a standstill of the whole process."""

    def __init__(self, standstill_s: float) -> None:
        self._standstill_s = standstill_s

    async def write(self, message: pb.ServerMessage) -> None:
        time.sleep(self._standstill_s)
        await asyncio.sleep(0.01)


async def test_a_standstill_of_the_service_makes_no_slow_reader():
    timing = SimpleNamespace(slow_reader_ms=100)
    plane = SimpleNamespace(config=SimpleNamespace(timing=timing), close=lambda runner: None)
    call = StreamCall(plane, Metrics(), LateWrites(0.2), lambda: Caller("", ""))
    session = SimpleNamespace(ends=[], end=lambda end: session.ends.append(end))
    call._runner = SimpleNamespace(session=session)
    await call._send(pb.ServerMessage())
    assert session.ends == []


def test_a_suspended_gateway_is_replaced_while_robots_act(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as made, robot(made.address) as one:
        one.open()
        pid = gateway(made)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        while runs(pid):
            act(one)
        wait_for(lambda: gateway(made) not in (None, pid))
        act(one)
        lost = [line for line in events(tmp_path) if line["event"] == "child_lost"]
        assert [(line["child"], line["cause"]) for line in lost] == [("gateway", "hung")]
        assert not {"worker_ready", "WORKER_LOST"} & set(one.kinds())
        stopped(made)


def test_a_wall_clock_that_jumps_by_days_is_not_noticed(checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It jumps whenever it is read: a log of few lines might otherwise be written on one day by chance."""
    jumps = JUMPS.replace("int(time.monotonic())", "next(reads)")
    (tmp_path / "sitecustomize.py").write_text(f"import itertools\nreads = itertools.count()\n{jumps}")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with front(checkpoint, tmp_path) as made, robot(made.address) as one:
        one.open()
        while one.sent < 20:
            act(one)
        assert len({round((line["time"] - time.time()) / DAY_S) for line in events(tmp_path)}) > 1
        os.kill(made.worker(), signal.SIGKILL)
        while one.until("notice").notice.kind != "worker_ready":
            pass
        act(one)
        stopped(made)
