"""Operators: a held robot stays held whatever happens, goes on from rest, and obeys whoever spoke last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent, End, Event, NoticeEvent, StatusEvent
from edgeflow.service.sessions.orders import HELD_TEXT, OperatorHold
from edgeflow.service.sessions.session import Session
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import Playing
from edgeflow_client.types import Command, Disposition
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_chunks import WIDE, answered
from tests.service.sessions.test_session import answer, reject, submit
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

HOLDS = OperatorHold(text="door open", by="ann", since_ms=1)


def new_session() -> Session:
    return Session(1, REQUEST, SCHEMA, RULES, 0)


def offer(session: Session, seq: int, now_ns: int = 0, instruction: str | None = None) -> None:
    now_ns = now_ns or seq
    session.admit(seq, now_ns, now_ns)
    session.offer(CheckedFrame(seq=seq, stamp_ns=now_ns, images=(b"abc",), instruction=instruction), now_ns)


def outcomes(events: list[Event]) -> list[tuple[int, Disposition, str]]:
    return [(each.seq, each.disposition, each.reason) for each in events if isinstance(each, StatusEvent)]


def commands(events: list[Event]) -> list[tuple[Command, str]]:
    return [(each.command, each.reason) for each in events if isinstance(each, ActionEvent)]


def test_all_frames_in_flight_leave_at_once_with_hold_and_the_operator_s_text():
    session = new_session()
    sent = submit(session, 1)
    offer(session, 2)
    session.holds.hold_by(HOLDS)
    told = session.take(3)
    dropped = (Disposition.DROPPED, Reason.OPERATOR_HOLD)
    assert sorted(outcomes(told)) == [(1, *dropped), (2, *dropped)]
    assert [(each.kind, each.text) for each in told if isinstance(each, NoticeEvent)] == [("held", "door open")]
    assert commands(told) == [(Command.HOLD, Reason.OPERATOR_HOLD)] and told[-1].command is Command.HOLD
    answer(session, sent)
    offer(session, 3)
    assert session.start_decoding(4, alone=True) is None, "held frames are not decoded"
    assert outcomes(session.take(4)) == [(3, *dropped)]


def lose_worker(session: Session) -> None:
    session.worker_lost()
    session.worker_ready()


def fall_silent(session: Session) -> None:
    for now_ms in (600, 1_900):
        session.tick(now_ms * MS)
    assert session.parked and session.commands


EVENTS: dict[str, Callable[[Session], None]] = {
    "worker lost": lose_worker,
    "silence": fall_silent,
    "reset": lambda session: session.request_reset("next", 5),
    "instruction of a frame": lambda session: offer(session, 5, instruction="other"),
    "instruction of an operator": lambda session: session.instruct("other"),
    "another hold": lambda session: session.holds.hold_by(HOLDS),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_held_robot_stays_held_after(name: str):
    session = new_session()
    submit(session, 1)
    session.holds.hold_by(HOLDS)
    session.take(2)
    EVENTS[name](session)
    assert all(reason == Reason.OPERATOR_HOLD for _, reason in commands(session.take(2_000 * MS)))
    now_ns = 3_000 * MS
    offer(session, 9, now_ns)
    assert outcomes(session.take(now_ns)) == [(9, Disposition.DROPPED, Reason.OPERATOR_HOLD)]
    assert not session.ring_wanted, "a held robot takes no slots back"
    session.holds.resume()
    offer(session, 10, now_ns + 1)
    if session.ring_wanted:
        session.ring_asked()
        session.worker_ready()
    assert session.start_decoding(now_ns + 1, alone=True) is not None


def test_a_robot_that_resets_hears_again_that_it_is_held():
    session = new_session()
    session.holds.hold_by(HOLDS)
    session.take(1)
    session.request_reset("", 2)
    assert commands(session.take(2)) == [(Command.HOLD, Reason.OPERATOR_HOLD)]


def test_a_held_robot_that_sends_frames_keeps_its_slots():
    session = new_session()
    session.holds.hold_by(HOLDS)
    for tick in range(1, 40):
        offer(session, tick, tick * 100 * MS)
        session.tick(tick * 100 * MS)
        session.take(tick * 100 * MS)
    assert not session.parked and session.active


def test_the_end_says_why_a_held_session_ends():
    session = new_session()
    session.holds.hold_by(HOLDS)
    session.take(1)
    session.end(End("ABORTED", Reason.OPERATOR_ENDED, "an operator ended the session"))
    assert commands(session.take(2)) == [(Command.HOLD, Reason.OPERATOR_ENDED)]
    drained = new_session()
    drained.holds.hold_by(HOLDS)
    drained.drain(100)
    assert drained.ended is not None and drained.ended.reason is Reason.DRAINING


def test_a_stop_outlasts_a_hold_and_operators_end_no_fault():
    session = new_session()
    for seq in (1, 2, 3):
        answer(session, submit(session, seq), valid=False)
    session.holds.hold_by(HOLDS)
    assert commands(session.take(4)) == [(Command.STOP, Reason.FAULT)]
    with pytest.raises(FailedPrecondition, match="in fault"):
        session.instruct("other")
    session.holds.resume()
    offer(session, 4)
    assert outcomes(session.take(5)) == [(4, Disposition.REJECTED, Reason.FAULT)]


def test_a_robot_goes_on_from_rest():
    session = Session(1, replace(REQUEST, chunks=True), WIDE, RULES, 0)
    answered(session)
    session.take(1)
    session.holds.hold_by(HOLDS)
    session.holds.resume()
    session.admit(2, 2, 2)
    session.offer(CheckedFrame(seq=2, stamp_ns=2, images=(b"abc",), playing=Playing(1, 1)), 2)
    assert session.start_decoding(2, alone=True) is not None
    session.decoded(b"abc", 1)
    frame = session.start_sending(2)
    assert frame is not None and frame.playing is None and frame.rested, "no continuation of the chunk before"


def test_the_robot_takes_an_operator_s_instruction_back_only_with_another_text():
    session = new_session()
    epoch = session.epoch
    session.instruct("grasp the ring")
    offer(session, 1, instruction=REQUEST.instruction)
    assert (session.instruction, session.epoch) == ("grasp the ring", epoch + 1), "it repeats what it said before"
    offer(session, 2, instruction="grasp the ring")
    assert session.epoch == epoch + 1
    offer(session, 3, instruction=REQUEST.instruction)
    assert (session.instruction, session.epoch) == (REQUEST.instruction, epoch + 2)
    session.instruct("grasp the ring")
    session.reset()
    assert session.instruction == "grasp the ring", "an episode without a text keeps it"
    session.reset(REQUEST.instruction)
    assert session.instruction == REQUEST.instruction


def test_an_instruction_that_does_not_fit_gives_way_also_to_an_operator_s():
    session = new_session()
    answer(session, submit(session, 1))
    session.instruct("grasp the ring")
    answer(session, submit(session, 2))
    session.instruct("far too long")
    reject(session, submit(session, 3))
    assert session.instruction == "grasp the ring"
    offer(session, 4, instruction=REQUEST.instruction)
    assert session.instruction == "grasp the ring", "the robot repeats what it said before"


def test_a_text_of_the_robot_s_is_not_lost_with_an_operator_s_that_does_not_fit():
    session = new_session()
    answer(session, submit(session, 1))
    offer(session, 2, instruction="second")  # no answer shows that it fits
    session.instruct("far too long")
    reject(session, submit(session, 3, "second"))
    assert session.instruction == "first"
    submit(session, 4, "second")
    assert session.instruction == "second", "the robot repeats it"


def test_a_hold_without_a_text_has_one_for_people():
    session = new_session()
    session.holds.hold_by(OperatorHold(text="", by="", since_ms=1))
    (notice,) = [each for each in session.take(1) if isinstance(each, NoticeEvent)]
    assert notice.text == HELD_TEXT
