"""A service without descriptors to spare: idle sockets hold all of them when workers are lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from edgeflow_client.rpc import control_pb2 as pb
from tests.service.front_process import BlockingRobot, Front, front, robot, wait_for
from tests.service.processes import workers

FEW = 64


@contextlib.contextmanager
def idle_sockets(made: Front) -> Iterator[None]:
    """Take all descriptors of a front."""
    host, _, port = made.address.partition(":")
    open_files = Path(f"/proc/{made.process.pid}/fd")
    with contextlib.ExitStack() as stack:

        def taken() -> bool:
            if (there := len(list(open_files.iterdir()))) < FEW:
                stack.enter_context(socket.create_connection((host, int(port))))
            return there == FEW

        wait_for(taken)
        yield


def act(one: BlockingRobot) -> None:
    """Send frames until one is acted on: on a busy machine an action may be too old."""
    one.frame()
    while one.until("action").action.command != pb.COMMAND_ACT:
        assert one.sent < 1000
        one.frame()


def ready_again(one: BlockingRobot) -> None:
    while one.until("notice").notice.kind != "worker_ready":
        pass


def test_lost_workers_are_replaced_without_a_descriptor_to_spare(checkpoint, tmp_path: Path):
    settings = {"standby": True, "timing__crash_limit": 1000}
    with (
        front(checkpoint, tmp_path, descriptors=FEW, **settings) as made,
        robot(made.address) as one,
    ):
        one.open()
        act(one)
        wait_for(lambda: "worker_standby" in (tmp_path / "log").read_text())
        with idle_sockets(made):
            for _ in range(2):  # the reserve begins, or a worker starts cold
                serving = workers(made.process.pid)[0]
                os.kill(serving, signal.SIGKILL)
                ready_again(one)
                act(one)
        made.signal(signal.SIGTERM)
        one.rest()
        assert made.ended() == 0
        lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
        events = [json.loads(line)["event"] for line in lines]  # beside gRPC's words about descriptors
        assert events.count("worker_lost") == 2 and "task_ended" not in events
