"""Control's sessions of the robots' process: what that process may send, and answers that it does not take at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeflow.ipc.packets import seal
from edgeflow.service.children.messages import (
    CloseRobot,
    ObserveRobot,
    OpenRobot,
    ResetRobot,
    RobotActed,
    RobotOpened,
    RobotRejected,
)
from edgeflow.service.children.robots import RobotSessions
from edgeflow.service.frontends.observation import ClientObservation, Reader
from edgeflow.service.security.auth import Authenticator, Caller
from edgeflow_client.errors import WorkerError
from tests.service.harness import RunningService, config, eventually, serving
from tests.service.scripted import ANY_CAMERA, Script

SIDE = 8
PIXELS = SIDE * SIDE * 3


class FakeSupervisor:
    """The robots' process as control's supervisor has it: it takes answers, or none."""

    name, is_running, restarts = "robots", True, 0

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.full = False

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> bool:
        if not self.full:
            self.taken.append(message)
        return not self.full


class RobotsProcess:
    """The sessions of a service, and the robots' process that the test plays."""

    def __init__(self, served: RunningService) -> None:
        service = served.service
        self.sessions = RobotSessions(service.plane, service._authenticator, service._log)
        self.supervisor = FakeSupervisor()
        seen = ClientObservation(images={"image": np.zeros((SIDE, SIDE, 3), np.uint8)}, state={}, instruction="go")
        opened, _ = Reader(config(), "openpi").read(seen, ANY_CAMERA)
        self.opened = replace(opened, policy_numbers=())

    def take(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        self.sessions.take(self.supervisor, message, list(descriptors))  # type: ignore[arg-type]

    async def until(self, count: int) -> Any:
        """The newest answer, once there are so many."""
        await eventually(lambda: len(self.supervisor.taken) >= count)
        assert len(self.supervisor.taken) == count, self.supervisor.taken
        return self.supervisor.taken[-1]

    async def open(self, number: int = 1) -> None:
        count = len(self.supervisor.taken) + 1
        self.take(OpenRobot(number, self.opened, Caller("127.0.0.1")))
        assert isinstance(await self.until(count), RobotOpened)

    def observe(self, seq: int, size: int = PIXELS, session: int = 1, **changes: Any) -> None:
        values = {"state": [], "instruction": "go", "received_ns": 1, "decode_ns": 1, **changes}
        self.take(ObserveRobot(session=session, seq=seq, **values), [seal(bytes(size))])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


async def test_a_session_from_its_opening_to_its_end(checkpoint):
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        await played.open()
        before = descriptors()
        for seq in (1, 2, 3):
            played.observe(seq, received_ns=seq)
            answer = await played.until(seq + 1)
            assert isinstance(answer, RobotActed) and (answer.session, answer.action.seq) == (1, seq)
        played.take(ResetRobot(1))
        played.observe(4, received_ns=4)
        assert (await played.until(5)).action.epoch == 2
        assert descriptors() <= before
        played.take(CloseRobot(1))
        await eventually(lambda: not served.service.plane._runners)
        played.observe(5)  # on its way when it was closed
        played.take(ResetRobot(1))
        played.take(CloseRobot(1))
        assert len(played.supervisor.taken) == 5


async def test_an_unchecked_observation_ends_the_process(checkpoint):
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        await played.open()
        with pytest.raises(WorkerError, match="repeats the number of a session"):
            played.take(OpenRobot(1, played.opened, Caller("127.0.0.1")))
        for changes in ({"size": PIXELS - 1}, {"size": PIXELS + 1}, {"state": [1.0]}, {"instruction": "\x07"}):
            with pytest.raises(WorkerError):
                played.observe(len(played.supervisor.taken) + 10, **changes)
        with pytest.raises(WorkerError, match="lacks its pixels"):
            played.take(ObserveRobot(session=1, seq=90, state=[], instruction="go", received_ns=1, decode_ns=1))
        played.observe(91)
        with pytest.raises(WorkerError, match="repeats the number of an observation"):
            played.observe(91)
        await played.until(2)
        played.take(OpenRobot(2, replace(played.opened, unnorm_key="k" * 65), Caller("127.0.0.1")))
        rejected = await played.until(3)
        assert (rejected.session, rejected.seq) == (2, 0) and "unnorm_key" in rejected.text
        played.sessions.lost()
        await eventually(lambda: not served.service.plane._runners)


async def test_a_process_that_does_not_read_gets_the_newest_answer(checkpoint):
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        await played.open()
        played.supervisor.full = True
        for seq in (1, 2, 3):
            played.observe(seq, received_ns=seq)
            await eventually(lambda: len(served.script.worker.submitted()) == seq)  # noqa: B023
            (runner,) = served.service.plane._runners.values()
            await eventually(lambda: not runner.session._frames)  # noqa: B023
        played.supervisor.full = False
        assert (await played.until(2)).action.seq == 3
        played.sessions.lost()


async def test_an_answer_that_waits_is_for_no_later_process(checkpoint):
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        await played.open()
        played.supervisor.full = True
        played.observe(1, received_ns=1)
        (runner,) = served.service.plane._runners.values()
        await eventually(lambda: bool(served.script.worker.submitted()) and not runner.session._frames)
        played.supervisor.restarts, played.supervisor.full = 1, False
        before = len(played.supervisor.taken)
        (robot,) = played.sessions._robots.values()
        await eventually(lambda: robot._resend is None)
        assert len(played.supervisor.taken) == before
        played.sessions.lost()


async def test_too_many_sessions_and_lost_pixels_are_rejected(checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edgeflow.service.children.robots.MOST_SESSIONS", 1)
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        await played.open()
        played.take(OpenRobot(2, played.opened, Caller("127.0.0.1")))
        rejected = await played.until(2)
        assert isinstance(rejected, RobotRejected) and (rejected.session, rejected.seq, rejected.reason) == (
            2,
            0,
            "QUEUE_FULL",
        )
        lost = ObserveRobot(session=1, seq=1, state=[], instruction="go", received_ns=1, decode_ns=1)
        played.sessions.lost_message(played.supervisor, lost)  # type: ignore[arg-type]
        assert (await played.until(3)).seq == 1
        played.sessions.lost()


async def test_a_caller_without_a_token_in_force_is_rejected(checkpoint):
    async with serving(checkpoint) as served:
        played = RobotsProcess(served)
        played.sessions._authenticator = Authenticator([], served.service.metrics, served.service._log)
        played.take(OpenRobot(1, played.opened, Caller("127.0.0.1", "arm", "0" * 64)))
        assert (await played.until(1)).reason == "REVOKED"
        assert not served.service.plane._runners


async def test_another_policy_than_the_process_knows_is_a_rejection(checkpoint):
    script = Script()
    async with serving(checkpoint, script) as served:
        played = RobotsProcess(served)
        played.opened = replace(played.opened, policy_cameras=())
        played.take(OpenRobot(1, played.opened, Caller("127.0.0.1")))
        rejected = await played.until(1)
        assert (rejected.code, rejected.reason) == ("UNAVAILABLE", "WORKER_RESTARTING")
