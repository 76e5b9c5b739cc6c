"""The process of robots' own clients, killed and beside others that are: whose robots notice."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from edgeflow.service.fork_server import NICE, OOM_SCORE
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from tests.service.faults.test_children import acts, models
from tests.service.front_process import Front, front, robot, wait_for
from tests.service.processes import forked
from tests.service.scripted import good_values

OBSERVATION = pack({"image": np.zeros((8, 8, 3), np.uint8), "prompt": "go"}, ArrayCoding.OPENPI)
CONNECT_S = 30.0


def child(served: Front, name: str) -> int:
    """The process id of a child, once there is one."""
    return wait_for(lambda: forked(served.process.pid, name)) or 0


def nice_and_score(pid: int) -> tuple[int, int]:
    return os.getpriority(os.PRIO_PROCESS, pid), int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@contextlib.contextmanager
def openpi_robot(served: Front) -> Iterator[ClientConnection]:
    """A connected robot that has its metadata; the connection waits in the backlog while the process restarts."""
    port = json.loads(served.ready_file.read_text())["robots"]
    with connect(f"ws://127.0.0.1:{port}/", compression=None, open_timeout=CONNECT_S, proxy=None) as socket:
        assert isinstance(socket.recv(CONNECT_S), bytes)
        yield socket


def asked(socket: ClientConnection) -> dict[str, Any]:
    """The reply to an observation, which must have actions."""
    socket.send(OBSERVATION)
    reply = socket.recv(CONNECT_S)
    assert isinstance(reply, bytes), reply
    found: dict[str, Any] = unpack(reply, 100)[0]
    assert found["actions"].tolist() == [np.float32(good_values(None)).tolist()]  # type: ignore[arg-type]
    return found


def closed_sessions(tmp_path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "session_closed"]


def test_each_killed_process_takes_only_its_own_robots(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path, chat__enabled=True) as served, robot(served.address) as one:
        one.open()
        acts(one)
        robots, gateway, chat = (child(served, f"ef-{name}") for name in ("robots", "gateway", "chat"))
        control = nice_and_score(served.process.pid)
        assert nice_and_score(robots) == control
        assert nice_and_score(gateway) == nice_and_score(chat) == (max(NICE, control[0]), OOM_SCORE)
        assert resource.prlimit(robots, resource.RLIMIT_DATA)[0] == 1024 << 20
        with openpi_robot(served) as first:
            asked(first)
            for pid in (gateway, chat):
                os.kill(pid, signal.SIGKILL)
                assert asked(first)["server_timing"]["epoch"] == 1
            for _ in range(4):  # a client that still sends hears the limit, where a reset would hide it
                with openpi_robot(served) as large, pytest.raises(ConnectionClosed) as closed:
                    large.send(bytes(6 << 20))
                    large.recv(CONNECT_S)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009, closed.value
            assert models(served)["data"]
            assert asked(first)["server_timing"]["epoch"] == 1
            os.kill(robots, signal.SIGKILL)
            began_s = time.monotonic()
            with pytest.raises((ConnectionClosed, OSError)):
                first.recv(CONNECT_S)
            acts(one)
            with openpi_robot(served) as second:
                asked(second)
                assert time.monotonic() - began_s < 10  # on a busy machine
                acts(one)
            assert child(served, "ef-robots") != robots
        wait_for(lambda: len(closed_sessions(tmp_path)) == 2)
        assert [each["reason"] for each in closed_sessions(tmp_path)] == ["client_gone"] * 2
        with openpi_robot(served) as third:
            asked(third)
            served.signal(signal.SIGTERM)
            assert served.ended() == 0


def test_a_robots_process_that_hangs_is_replaced(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as served, robot(served.address) as one:
        one.open()
        robots = child(served, "ef-robots")
        with openpi_robot(served) as first:
            asked(first)
            os.kill(robots, signal.SIGSTOP)
            acts(one)
            with openpi_robot(served) as second:
                asked(second)
            assert child(served, "ef-robots") != robots
        acts(one)
