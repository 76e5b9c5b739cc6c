"""Frames and resets far above the rate end a session; a robot that is somewhat too fast keeps its own."""

from __future__ import annotations

import pytest

from edgeflow.service.sessions.frames import ActionEvent, NoticeEvent, StatusEvent
from edgeflow.service.sessions.rates import CHANGE_PERIOD_NS, CHANGES, SECOND_NS
from edgeflow.service.sessions.session import Session
from edgeflow_client.reasons import Reason
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_session import answer, decoded, offer, submit
from tests.service.sessions.test_session_properties import REQUEST, RULES


def flood(session: Session, rate_hz: int, seconds: float, began_ns: int = 0) -> int:
    """Offer frames at this rate beside another robot until the session ends; returns how many were offered."""
    last = 0
    for seq in range(1, int(rate_hz * seconds) + 1):
        last, now_ns = seq, began_ns + seq * SECOND_NS // rate_hz
        offer(session, seq, now_ns)
        decoded(session, now_ns, alone=False)
        if session.ended is not None:
            break
    return last


@pytest.mark.parametrize("rate_hz", [200, 1000, 4000])
def test_frames_far_above_the_rate_for_long_end_the_session(rate_hz: int):
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    sent = flood(session, rate_hz, 10)
    end = session.ended
    assert end is not None and (end.code, end.reason) == ("RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED)
    assert "more than 600 frames in 10 s" in end.text and 600 < sent < 800
    statuses = [event for event in session.take(0) if isinstance(event, StatusEvent)]
    assert sum(event.frames for event in statuses) == sent, "each frame has one outcome"


@pytest.mark.parametrize(("rate_hz", "seconds"), [(20, 60), (60, 60), (600, 1), (100_000, 0.006)])
def test_a_robot_that_is_somewhat_too_fast_keeps_its_session(rate_hz: int, seconds: float):
    """Twice the declared rate and a camera's, for long; 600 frames within a second, and all at once after a stall."""
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    flood(session, rate_hz, seconds)
    assert session.ended is None
    now_ns = int(seconds * SECOND_NS) + SECOND_NS
    offer(session, 10_000, now_ns)
    assert decoded(session, now_ns, alone=False) == 10_000


def test_a_robot_that_waits_for_each_answer_may_be_faster_than_it_declared():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    for seq in range(1, 3001):
        answer(session, submit(session, seq))
        assert [event.seq for event in session.take(seq) if isinstance(event, ActionEvent)] == [seq]
    assert session.ended is None


def test_a_flood_ends_a_session_in_fault_too():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    session.answers.invalid.fault = True
    flood(session, 4000, 1)
    assert session.ended is not None and session.ended.reason is Reason.RATE_EXCEEDED


def test_resets_have_a_rate_and_end_a_session_that_does_not_keep_it():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    for _ in range(CHANGES):
        session.request_reset("", 0)
    assert session.epoch == 1 + CHANGES
    session.request_reset("", CHANGE_PERIOD_NS)
    assert session.epoch == 2 + CHANGES and session.ended is None
    for _ in range(RULES.rejected_frames + 1):
        session.request_reset("", CHANGE_PERIOD_NS)
    assert session.epoch == 2 + CHANGES
    assert session.ended is not None and session.ended.reason is Reason.TOO_MANY_REJECTED
    rejected = {event.code for event in session.take(0) if isinstance(event, NoticeEvent) and event.kind == "rejected"}
    assert rejected == {"RESOURCE_EXHAUSTED"}
