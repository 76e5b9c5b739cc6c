"""Rules of a session that a stream shows only with a real model behind it."""

from __future__ import annotations

import pytest

from edgeflow.ipc.messages import FrameDropped, FrameResult, ResetSession, SubmitFrame
from edgeflow.reasons import Reason
from edgeflow.service.sessions.events import NoticeEvent, StatusEvent
from edgeflow.service.sessions.requests import CheckedFrame
from edgeflow.service.sessions.session import Session
from edgeflow.types import Disposition
from tests.service.scripted import SCHEMA
from tests.service.test_session_properties import REQUEST, RULES


def submit(session: Session, seq: int, instruction: str | None = None) -> SubmitFrame:
    """A frame on its way to the worker."""
    session.admit(seq, seq, seq)
    session.offer(CheckedFrame(seq=seq, stamp_ns=seq, images=(b"abc",), instruction=instruction), seq)
    session.start_decoding()
    session.decoded(b"abc", 1)
    frame = session.start_sending(seq)
    assert frame is not None
    return frame


def answer(session: Session, frame: SubmitFrame) -> None:
    session.result(
        FrameResult(
            session=1,
            epoch=frame.epoch,
            seq=frame.seq,
            values=[0.0, 0.0, 0.5],
            token_ids=[7, 8, 9],
            valid=True,
            queue_ns=1,
            inference_ns=1,
            passes=3,
        )
    )


def refuse(session: Session, frame: SubmitFrame) -> None:
    code, text = "INVALID_ARGUMENT", "instruction: has 900 prompt tokens; the limit is 128"
    session.dropped(
        FrameDropped(
            session=1,
            epoch=frame.epoch,
            seq=frame.seq,
            disposition="rejected",
            code=code,
            reason=Reason.INSTRUCTION_TOO_LONG,
            text=text,
        )
    )


@pytest.mark.parametrize("answered", [None, "second"])
def test_an_instruction_that_does_not_fit_gives_way_to_the_one_before(answered: str | None):
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    before = "first" if answered is None else answered
    if answered is not None:
        answer(session, submit(session, 1, answered))
    bad = submit(session, 2, "far too long")
    session.take(2)
    session.commands.clear()
    refuse(session, bad)
    told = session.take(3)
    assert [(e.seq, e.disposition, e.reason) for e in told if isinstance(e, StatusEvent)] == [
        (2, Disposition.REJECTED, Reason.INSTRUCTION_TOO_LONG)
    ]
    assert [e.epoch for e in told if isinstance(e, NoticeEvent) and e.kind == "epoch"] == [bad.epoch + 1]
    assert list(session.commands) == [ResetSession(1, bad.epoch + 1)]
    good = submit(session, 3)
    assert (good.instruction, good.epoch) == (before, bad.epoch + 1)


def test_two_instructions_that_do_not_fit_are_both_taken_back():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    first, second = submit(session, 1, "too long"), submit(session, 2, "longer still")
    refuse(session, first)  # of an epoch that is over: it left with it
    refuse(session, second)
    assert submit(session, 3).instruction == "first"
    dispositions = [e.disposition for e in session.take(9) if isinstance(e, StatusEvent)]
    assert dispositions == [Disposition.DROPPED, Disposition.REJECTED]
