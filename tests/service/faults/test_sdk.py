"""The service as a robot that uses the SDK meets it: faults, and images that it shrinks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, Command, ImageFormat
from tests.service.harness import HEIGHT, JPEG, WIDTH, RunningService, eventually, serving
from tests.service.scripted import Script

CAMERA = CameraSpec("wrist", WIDTH, HEIGHT, ImageFormat.JPEG)


async def with_robot(served: RunningService, work: Callable[[RobotClient], None], **options) -> None:
    """Run a robot's program in a thread of its own."""
    settings = {"cameras": [CAMERA], "instruction": "grasp", "control_period_s": 0.05, "open_timeout_s": 20} | options

    def run() -> None:
        with RobotClient(served.service.status.grpc_address, **settings) as client:
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


@pytest.mark.parametrize("send", ImageFormat)
@pytest.mark.parametrize(
    "need", [CameraNeed(name="wrist", width=WIDTH, height=HEIGHT), CameraNeed(name="wrist", side=HEIGHT)]
)
async def test_a_robot_shrinks_images_to_what_the_policy_takes(checkpoint, need, send):
    large = CameraSpec("wrist", 4 * WIDTH, 4 * HEIGHT, ImageFormat.RGB8, send=send, resize=True)
    image = np.full((4 * HEIGHT, 4 * WIDTH, 3), (200, 100, 50), np.uint8)
    async with serving(checkpoint, Script(inputs=PolicyInputs(cameras=(need,)))) as served:

        def work(client: RobotClient) -> None:
            assert client.opened.sizes == {"wrist": (WIDTH, HEIGHT)}
            while not client.statistics().actions:
                assert client.push(image) < 2000
                time.sleep(0.02)

        await with_robot(served, work, cameras=[large])
        frame = served.script.worker.submitted()[0]
    assert frame.sizes == [HEIGHT, WIDTH]
    seen = np.frombuffer(bytes(frame.payload), np.uint8).reshape(HEIGHT, WIDTH, 3)
    assert np.abs(seen.astype(int) - (200, 100, 50)).max() <= 4
