"""A link that stands still while a robot pushes frames: what reaches the service when it moves again."""

from __future__ import annotations

import asyncio
import time

from benchmarks.chaos.fake_server import Proxy
from edgeflow.service.sessions.frames import ActionEvent
from edgeflow.service.sessions.observers import ObservedFrame, SessionObserver
from edgeflow_client.connection.outgoing import MOST_UNCONFIRMED, FrameWindow
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.service.harness import HEIGHT, WIDTH, serving
from tests.service.scripted import Script

CAMERA = CameraSpec("wrist", WIDTH, HEIGHT, ImageFormat.RGB8)
IMAGE = bytes(WIDTH * HEIGHT * 3)
PERIOD_S = 0.02
STALLED = 50  # frames pushed meanwhile, a second's
AGE_MS = 300
MOST_S = 60


class Arrivals(SessionObserver):
    """The frames that arrived, and those that were answered."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.answers: list[int] = []

    def observed(self, frame: ObservedFrame) -> None:
        self.frames.append(frame.frame.seq)

    def answered(self, session: int, action: ActionEvent) -> None:
        self.answers.append(action.seq)


def stall(address: str, proxy: Proxy) -> tuple[int, int, float]:
    """Push frames over a link that stalls; returns the last frame before, the last one during the stall, and the age
    of the oldest action that was executed.
    """
    until = time.monotonic() + MOST_S
    with RobotClient(address, cameras=[CAMERA], instruction="grasp", control_period_s=PERIOD_S) as client:

        def push() -> int:
            assert time.monotonic() < until, "it did not happen"
            seq = client.push(IMAGE)
            time.sleep(PERIOD_S)
            return seq

        while client.statistics().actions < 5:
            before = push()
        proxy.stall()
        last = [push() for _ in range(STALLED)][-1]
        proxy.resume()
        wanted = client.statistics().actions + 5
        while client.statistics().actions < wanted:
            if client.latest().needs_reset:  # this machine is slow
                client.reset()
            push()
        return before, last, client.statistics().age_max_ns / 1e6


async def arrivals_after_a_stall(checkpoint) -> tuple[list[int], list[int], int, float]:
    """The numbers of the stalled frames that arrived and that were answered, the first of them, and the oldest age."""
    seen = Arrivals()
    with Proxy() as proxy:
        async with serving(checkpoint, Script(), observers=[seen], max_action_age_ms=AGE_MS) as served:
            proxy.target = int(served.service.status.grpc_address.rpartition(":")[2])
            before, last, oldest_ms = await asyncio.wait_for(asyncio.to_thread(stall, proxy.address, proxy), MOST_S)
    stalled = range(before + 1, last)  # the last one is the newest when the link moves again
    arrived = [seq for seq in seen.frames if seq in stalled]
    return arrived, [seq for seq in seen.answers if seq in stalled], before + 1, oldest_ms


async def test_after_a_stall_the_service_gets_one_window_of_old_frames_and_then_the_newest(checkpoint):
    arrived, answered, first, oldest_ms = await arrivals_after_a_stall(checkpoint)
    assert 1 <= len(arrived) <= MOST_UNCONFIRMED
    assert arrived[-1] < first + STALLED / 2  # they were on the way when it began; the next one is the newest
    assert answered == []
    assert oldest_ms < AGE_MS


async def test_without_a_window_old_frames_queue(checkpoint, monkeypatch):
    monkeypatch.setattr(FrameWindow, "limit", lambda window: None)
    arrived, *_ = await arrivals_after_a_stall(checkpoint)
    assert len(arrived) > STALLED / 2
