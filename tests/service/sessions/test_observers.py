"""Observers see every session from its opening to its end, without changing it."""

from __future__ import annotations

from edgeflow.service.sessions.frames import ActionEvent, Event, StatusEvent
from edgeflow.service.sessions.observers import ClosedSession, ObservedFrame, OpenedSession, SessionObserver
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import eventually, serving


class ObserverCalls(SessionObserver):
    """What an observer was called with, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []

    def opened(self, session: OpenedSession) -> None:
        self.seen.append(("opened", session.number))

    def observed(self, frame: ObservedFrame) -> None:
        self.seen.append(("observed", (frame.session, frame.frame.seq, frame.gap_ns > 0)))

    def answered(self, session: int, action: ActionEvent) -> None:
        self.seen.append(("answered", (session, action.seq)))

    def notified(self, session: int, event: Event) -> None:
        if isinstance(event, StatusEvent):
            self.seen.append(("told", (session, event.seq, event.reason)))

    def closed(self, session: ClosedSession) -> None:
        self.seen.append(("closed", (session.number, session.end.reason)))


async def test_an_observer_sees_a_session_in_order(checkpoint):
    kept = ObserverCalls()
    async with serving(checkpoint, observers=[kept]) as served:
        robot = served.robot()
        await robot.open()
        for seq in (1, 2):
            await robot.frame(seq)
            await robot.action(seq)
        await robot.frame(2)  # again: rejected, so it is told and not observed
        await robot.until(lambda message: message.frame_status.reason == Reason.SEQ_DUPLICATE)
        await robot.send(pb.ClientMessage(close=pb.Close()))
        await robot.rest()
        await eventually(lambda: bool(kept.seen) and kept.seen[-1][0] == "closed")
    assert [each for each in kept.seen if each[0] != "told"] == [
        ("opened", 1),
        ("observed", (1, 1, False)),
        ("answered", (1, 1)),
        ("observed", (1, 2, True)),
        ("answered", (1, 2)),
        ("closed", (1, Reason.CLIENT_CLOSED)),
    ]
    assert ("told", (1, 2, Reason.SEQ_DUPLICATE)) in kept.seen


class BrokenObserver(SessionObserver):
    """Raises at nearly everything."""

    def opened(self, session: OpenedSession) -> None:
        raise ValueError("opened")

    def observed(self, frame: ObservedFrame) -> None:
        raise ValueError("observed")

    def answered(self, session: int, action: ActionEvent) -> None:
        raise ValueError("answered")

    def closed(self, session: ClosedSession) -> None:
        raise ValueError("closed")


async def test_an_observer_that_raises_costs_no_robot_its_session(checkpoint):
    kept = ObserverCalls()
    async with serving(checkpoint, observers=[BrokenObserver(), kept], incidents=4) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await robot.action(1)
        await robot.send(pb.ClientMessage(close=pb.Close()))
        await robot.rest()
        await eventually(lambda: bool(kept.seen) and kept.seen[-1][0] == "closed")
        assert {line["where"] for line in served.events("incident")} == {"observer"}
    assert [name for name, _ in kept.seen if name != "told"] == ["opened", "observed", "answered", "closed"]
