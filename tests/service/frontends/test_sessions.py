"""Connections and their sessions at control, with a control that the test plays; its answers to events of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgeflow.contract import CameraNeed, Chunk, PolicyInputs
from edgeflow.service.children.messages import (
    CloseRobot,
    ObserveRobot,
    OpenRobot,
    ResetRobot,
    RobotActed,
    RobotOpened,
    RobotRejected,
)
from edgeflow.service.children.robots import answers_of
from edgeflow.service.frontends import sessions
from edgeflow.service.frontends.observation import ClientObservation, Reader
from edgeflow.service.frontends.sessions import NoAction, RobotAnswer, RobotConnection, SessionsAtControl, rows_of
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.frames import ActionEvent, NoticeEvent, StatusEvent
from edgeflow_client.errors import InvalidArgument, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command, Disposition
from tests.service.harness import config, eventually

INPUTS = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))
CHUNK = Chunk((1.0, 2.0, 3.0), 1, 0.0)


class FakeLink:
    """Control's socket: takes messages, or nothing."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.full = False

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> bool:
        if not self.full:
            self.sent.append(message)
        return not self.full


class AnsweredConnection:
    """A connection, and the control that answers it."""

    def __init__(self, **settings: Any) -> None:
        self.config = config(**settings)
        self.link = FakeLink()
        self.sessions = SessionsAtControl(self.link, self.config)  # type: ignore[arg-type]
        self.robot: RobotConnection = self.sessions.connection(Caller("127.0.0.1"))
        self.read = 0

    def ask(self, *, side: int = 4, age_ns: int = 0) -> asyncio.Task[RobotAnswer]:
        seen = ClientObservation(images={"image": np.zeros((side, side, 3), np.uint8)}, state={}, instruction="go")
        opened, frame = Reader(self.config, "openpi").read(seen, INPUTS)
        received_ns = sessions.time.monotonic_ns() - age_ns
        return asyncio.create_task(self.robot.act(opened, frame, received_ns))

    async def next(self, kind: type) -> Any:
        """The next message to control, which must be of this kind."""
        await eventually(lambda: len(self.link.sent) > self.read)
        message = self.link.sent[self.read]
        self.read += 1
        assert isinstance(message, kind), message
        return message

    async def opened(self) -> int:
        number: int = (await self.next(OpenRobot)).session
        self.sessions.take(RobotOpened(number), [])
        return number

    def acted(self, number: int, seq: int, epoch: int = 1, **changes: Any) -> None:
        action = ActionEvent(
            epoch=epoch, command=Command.ACT, reason="", valid_for_ms=1, seq=seq, chunk=CHUNK, **changes
        )
        self.sessions.take(RobotActed(number, action), [])

    def rejected(self, number: int, seq: int, code: str, reason: str, command: str = "") -> None:
        message = RobotRejected(
            session=number, seq=seq, code=code, text="why", field="", reason=reason, command=command
        )
        self.sessions.take(message, [])


async def test_one_session_for_all_observations_and_epochs_grow_over_sessions():
    played = AnsweredConnection()
    asked = played.ask()
    number = await played.opened()
    assert (await played.next(ObserveRobot)).seq == 1
    played.acted(number, 1, epoch=2)
    assert rows_of((await asked).action).tolist() == [[1, 2, 3]] and asked.result().epoch == 2
    asked = played.ask()
    assert (await played.next(ObserveRobot)).seq == 2
    played.rejected(number, 0, "OK", "SILENT")  # it ended as the observation was on its way
    again = await played.opened()
    assert again != number
    assert (await played.next(ObserveRobot)).seq == 1
    played.acted(again, 1)
    assert (await asked).epoch == 3
    asked = played.ask(side=5)
    assert (await played.next(CloseRobot)).session == again
    third = await played.opened()
    assert (await played.next(ObserveRobot)).session == third
    played.acted(third, 1)
    assert (await asked).epoch == 4
    played.robot.close()
    assert (await played.next(CloseRobot)).session == third
    played.robot.close()
    assert len(played.link.sent) == played.read, "closed once"


async def test_answers_to_others_are_nobody_s():
    played = AnsweredConnection(timing__act_timeout_ms=100)
    asked = played.ask()
    number = await played.opened()
    await played.next(ObserveRobot)
    played.acted(number + 7, 1)
    played.acted(number, 0)
    played.acted(number, 2)
    played.rejected(number, 3, "ABORTED", "X")
    await asyncio.sleep(0)
    assert not asked.done()
    played.acted(number, 1)
    played.acted(number, 1)  # twice
    assert (await asked).action.seq == 1


async def test_a_late_answer_fails_and_answers_no_other_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "SLACK_S", -0.05)
    played = AnsweredConnection(timing__act_timeout_ms=100)
    asked = played.ask()
    with pytest.raises(NoAction, match="in time"):  # it is not even opened
        await asked
    first = (await played.next(OpenRobot)).session
    assert (await played.next(CloseRobot)).session == first
    played.sessions.take(RobotOpened(first), [])
    asked = played.ask()
    number = await played.opened()
    await played.next(ObserveRobot)
    with pytest.raises(NoAction, match="in time"):
        await asked
    asked = played.ask()
    assert (await played.next(ObserveRobot)).seq == 2
    played.acted(number, 1)
    await asyncio.sleep(0)
    assert not asked.done()
    played.acted(number, 2)
    assert (await asked).action.seq == 2


async def test_rejections_and_holds():
    played = AnsweredConnection()
    asked = played.ask()
    number = (await played.next(OpenRobot)).session
    played.rejected(number, 0, "RESOURCE_EXHAUSTED", "SESSIONS_TAKEN")
    with pytest.raises(ResourceExhausted):
        await asked
    asked = played.ask()
    number = await played.opened()
    await played.next(ObserveRobot)
    played.rejected(number, 1, "INTERNAL", "POLICY_OUTPUT_INVALID", "hold")
    with pytest.raises(NoAction) as held:
        await asked
    assert (held.value.command, held.value.reason, held.value.http_status) == ("hold", "POLICY_OUTPUT_INVALID", 503)
    asked = played.ask()
    await played.next(ObserveRobot)
    played.rejected(number, 2, "INVALID_ARGUMENT", "X")
    with pytest.raises(InvalidArgument):
        await asked
    asked = played.ask()
    await played.next(ObserveRobot)
    played.rejected(number, 0, "UNAVAILABLE", "FAULT", "stop")  # the session is over
    with pytest.raises(NoAction) as stopped:
        await asked
    assert stopped.value.command == "stop"
    with pytest.raises(NoAction) as stopped:
        await played.ask()
    assert (stopped.value.command, stopped.value.reason) == ("stop", "FAULT")
    played.robot.reset()
    played.ask()
    assert await played.opened() != number


async def test_a_session_may_end_as_soon_as_it_is_open():
    played = AnsweredConnection()
    asked = played.ask()
    number = await played.opened()
    played.rejected(number, 0, "UNAVAILABLE", "DRAINING", "hold")
    with pytest.raises(NoAction):
        await asked
    asked = played.ask()
    number = await played.opened()
    played.rejected(number, 0, "OK", "SILENT")
    number = await played.opened()
    assert (await played.next(ObserveRobot)).session == number
    played.acted(number, 1)
    assert (await asked).epoch == 3


async def test_an_action_that_got_too_old_on_its_way_is_withheld():
    played = AnsweredConnection()
    asked = played.ask(age_ns=2_000_000_000)
    number = await played.opened()
    await played.next(ObserveRobot)
    played.acted(number, 1, max_age_ms=1000)
    with pytest.raises(NoAction, match="older than 1000 ms"):
        await asked


async def test_resets_are_sent_where_they_change_something():
    played = AnsweredConnection()
    played.robot.reset()
    asked = played.ask()
    number = await played.opened()
    await played.next(ObserveRobot)
    played.acted(number, 1)
    await asked
    for _ in range(3):
        played.robot.reset()
    assert (await played.next(ResetRobot)).session == number
    assert len(played.link.sent) == played.read
    played.rejected(number, 0, "OK", "SILENT")
    played.robot.reset()
    played.robot.close()
    assert len(played.link.sent) == played.read, "it has ended already"


async def test_a_control_that_reads_nothing():
    played = AnsweredConnection()
    played.link.full = True
    for _ in range(2):
        with pytest.raises(NoAction, match="no room"):
            await played.ask()
    played.link.full = False
    asked = played.ask()
    number = await played.opened()
    played.link.full = True
    with pytest.raises(NoAction, match="no room"):
        await asked
    played.link.full = False
    asked = played.ask()
    while (message := await played.next(object)) and not isinstance(message, ObserveRobot):
        pass
    played.acted(number, message.seq)
    assert (await asked).action.seq == message.seq


async def test_a_client_that_leaves_closes_what_is_being_opened():
    played = AnsweredConnection()
    asked = played.ask()
    number = (await played.next(OpenRobot)).session
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert (await played.next(CloseRobot)).session == number


async def test_a_client_that_leaves_as_its_session_opens_leaves_at_once():
    played = AnsweredConnection()
    for opens in (True, False):
        asked = played.ask()
        number = (await played.next(OpenRobot)).session
        if opens:
            played.sessions.take(RobotOpened(number), [])
        else:
            played.rejected(number, 0, "RESOURCE_EXHAUSTED", "SESSIONS_TAKEN")
        asked.cancel()
        await asyncio.wait({asked}, timeout=5)
        assert asked.cancelled()
        if opens:
            assert (await played.next(CloseRobot)).session == number


async def test_rows_that_are_lost_between_the_processes_are_a_rejection():
    played = AnsweredConnection()
    asked = played.ask()
    number = await played.opened()
    await played.next(ObserveRobot)
    action = ActionEvent(epoch=1, command=Command.ACT, reason="", valid_for_ms=1, seq=1, chunk=Chunk((), 1, 0.0))
    played.sessions.take(RobotActed(number, action), [])
    with pytest.raises(ResourceExhausted, match="no memory"):
        await asked


def status(seq: int, disposition: Disposition, reason: str = "", **changes: Any) -> StatusEvent:
    return StatusEvent(seq=seq, disposition=disposition, reason=reason, text="why", **changes)


def safe(command: Command, reason: str) -> ActionEvent:
    return ActionEvent(epoch=1, command=command, reason=reason, valid_for_ms=1)


ACT = ActionEvent(epoch=1, command=Command.ACT, reason="", valid_for_ms=1, seq=4, chunk=CHUNK)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], []),
        ([NoticeEvent("epoch", 2)], []),
        ([safe(Command.HOLD, "INGRESS_SILENT")], []),
        ([ACT, status(4, Disposition.ACTED)], [(4, "act")]),
        ([status(1, Disposition.REJECTED, "X")], [(1, "")]),
        ([status(1, Disposition.DROPPED, "DRAINING")], [(1, "hold")]),
        ([status(1, Disposition.SUPERSEDED)], [(1, "hold")]),
        ([status(1, Disposition.SUPERSEDED, last_seq=3)], [(3, "hold")]),
        ([status(1, Disposition.REJECTED, Reason.FAULT)], [(1, "stop")]),
        ([status(2, Disposition.DROPPED, "Y"), safe(Command.STOP, "FAULT")], [(2, "stop")]),
        ([safe(Command.HOLD, "Z"), status(2, Disposition.REJECTED, "Z")], [(2, "hold")]),
        ([status(3, Disposition.SUPERSEDED), ACT, status(4, Disposition.ACTED)], [(3, "hold"), (4, "act")]),
    ],
)
def test_each_frame_is_answered_by_its_action_or_by_what_the_robot_has_to_do(events: list[Any], expected: list[Any]):
    found = answers_of(9, events)
    assert all(each.session == 9 for each in found)
    told = [(each.action.seq, "act") if isinstance(each, RobotActed) else (each.seq, each.command) for each in found]
    assert told == expected


async def test_a_rejection_is_repeated_only_for_the_same_cameras():
    played = AnsweredConnection()
    for _ in range(sessions.CHANGES):
        asked = played.ask()
        number = (await played.next(OpenRobot)).session
        played.rejected(number, 0, "RESOURCE_EXHAUSTED", "DEVICE_FULL")
        with pytest.raises(ResourceExhausted) as rejected:
            await asked
        assert rejected.value.reason == "DEVICE_FULL"
    with pytest.raises(ResourceExhausted) as again:
        await played.ask()
    assert again.value.reason == "DEVICE_FULL", "without asking control"
    with pytest.raises(ResourceExhausted) as other:
        await played.ask(side=6)
    assert other.value.reason == "RATE_EXCEEDED"
