"""The newest frame of a session wins before the loop ever sees it."""

from __future__ import annotations

from edgeflow.ipc.messages import CloseSession, Ping, SubmitFrame
from edgeflow.worker.inbox import Inbox
from edgeflow_client.clock import ManualClock


def frame(session: int, seq: int) -> SubmitFrame:
    return SubmitFrame(session=session, epoch=1, seq=seq, sizes=[1, 1], instruction="go", payload=b"abc")


def test_only_the_newest_frame_of_a_session_is_kept():
    inbox = Inbox()
    for message in (frame(1, 1), frame(2, 1), Ping(0), frame(1, 2), frame(1, 3)):
        inbox.put(message)
    drained = inbox.drain()
    assert drained.messages == [frame(1, 3), frame(2, 1), Ping(0)]
    assert drained.superseded == [frame(1, 1), frame(1, 2)]
    assert inbox.drain() == ([], [], {}, [])


def test_a_drained_frame_is_not_superseded():
    inbox = Inbox()
    inbox.put(frame(1, 1))
    assert inbox.drain()[:2] == ([frame(1, 1)], [])
    inbox.put(frame(1, 2))
    assert inbox.drain()[:2] == ([frame(1, 2)], [])


def test_a_frame_has_come_when_it_came_not_when_the_loop_looked():
    clock = ManualClock()
    inbox = Inbox(clock)
    for _ in range(2):
        clock.advance_ns(5)
        inbox.put(frame(1, clock.now_ns()))
    clock.advance_ns(90)
    assert inbox.drain().arrived_ns == {1: 10}


def test_waiting_ends_when_something_arrives_or_the_front_goes():
    inbox = Inbox()
    inbox.put(CloseSession(1))
    inbox.wait(timeout_s=60)
    inbox.drain()
    inbox.close()
    inbox.wait(timeout_s=60)
    assert inbox.closed
