"""Faults as a robot that uses the SDK meets them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, Command, ImageFormat
from tests.service.harness import HEIGHT, JPEG, WIDTH, RunningService, eventually, serving
from tests.service.scripted import Script

CAMERA = CameraSpec("wrist", WIDTH, HEIGHT, ImageFormat.JPEG)


async def with_robot(served: RunningService, work: Callable[[RobotClient], None], **options) -> None:
    """Run a robot's program in a thread of its own."""

    def run() -> None:
        address = served.service.status.grpc_address
        with RobotClient(
            address, cameras=[CAMERA], instruction="grasp", control_period_s=0.05, open_timeout_s=20, **options
        ) as client:
            work(client)

    await asyncio.wait_for(asyncio.to_thread(run), 60)


def push(client: RobotClient) -> None:
    """A frame, and a control period."""
    assert client.push({"wrist": JPEG}) < 2000, "it did not happen"
    time.sleep(0.02)


async def test_a_fault_stops_the_robot_until_it_resets(checkpoint):
    script = Script(values=lambda frame: [math.nan, 0.0, 0.0])
    async with serving(checkpoint, script) as served:

        def work(client: RobotClient) -> None:
            while client.latest().command is not Command.STOP:
                push(client)
            told = client.latest()
            assert (told.reason, told.needs_reset) == ("FAULT", True)
            script.values = lambda frame: [0.0, 0.0, 0.5]
            for _ in range(5):
                push(client)
            assert client.latest().command is Command.STOP
            client.reset()
            while client.latest().command is not Command.ACT:
                push(client)
            assert client.statistics().reconnects == 0

        await with_robot(served, work)


async def test_after_a_restart_the_same_stream_acts(checkpoint):
    script = Script()
    async with serving(checkpoint, script) as served:

        def work(client: RobotClient) -> None:
            acted = 0
            while acted < 3:
                push(client)
                acted = client.statistics().actions
            script.worker.kill()
            while client.statistics().actions < acted + 3 or len(script.workers) < 2:
                push(client)
            assert client.statistics().reconnects == 0

        await with_robot(served, work, resume_within_s=60)
        await eventually(lambda: served.metric("edgeflow_worker_restarts_total", cause="eof") == 1)
        assert served.metric("edgeflow_sessions_opened_total") == 1
