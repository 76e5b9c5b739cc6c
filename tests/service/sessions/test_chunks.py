"""Chunks in a session: the age of a row counts from its own moment, and what was sent is remembered for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.contract import Chunk
from edgeflow.ipc.messages import FrameResult
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import MOST_SENT, ActionEvent, SentChunks, StatusEvent
from edgeflow.service.sessions.session import Session
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import Disposition
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

HORIZON, STEP_MS = 5, 20.0
WIDE = replace(SCHEMA, horizon=HORIZON, step_ms=STEP_MS)
CHUNK = Chunk(tuple(value for row in range(HORIZON) for value in (0.1 * row, 0.0, 1.0)), HORIZON, STEP_MS)
LIMIT_MS = 100


def session_of(*, chunks: bool) -> Session:
    return Session(1, replace(REQUEST, chunks=chunks, max_action_age_ns=LIMIT_MS * MS), WIDE, RULES, 0)


def answered(session: Session, seq: int = 1, chunk: Chunk = CHUNK) -> None:
    """A frame of the time 0 is answered."""
    session.admit(seq, 0, 0)
    session.offer(CheckedFrame(seq=seq, stamp_ns=0, images=(b"abc",)), 0)
    assert session.start_decoding(0, alone=True) is not None
    session.decoded(b"abc", 1)
    frame = session.start_sending(0)
    assert frame is not None
    session.result(
        FrameResult(
            session=1,
            epoch=frame.epoch,
            seq=seq,
            chunk=chunk,
            token_ids=[],
            valid=True,
            queue_ns=0,
            inference_ns=0,
            passes=1,
            settled=0,
        )
    )


def action_of(session: Session, now_ms: int) -> ActionEvent:
    (found,) = [event for event in session.take(now_ms * MS) if isinstance(event, ActionEvent)]
    return found


@pytest.mark.parametrize(("now_ms", "step"), [(0, 0), (19, 0), (20, 1), (79, 3), (80, 4), (99, 4), (180, 4)])
def test_a_robot_without_chunks_gets_the_row_that_is_due_with_its_own_limit(now_ms: int, step: int):
    session = session_of(chunks=False)
    answered(session)
    action = action_of(session, now_ms)
    assert action.chunk == Chunk(CHUNK.row(step)) and action.values == CHUNK.row(step)
    assert action.max_age_ms == LIMIT_MS + step * STEP_MS
    assert (action.stamp_ns, action.age_ns) == (0, now_ms * MS)
    assert (session.robot_schema.horizon, session.schema.horizon) == (1, HORIZON)


def test_a_robot_that_executes_chunks_gets_all_rows():
    session = session_of(chunks=True)
    answered(session)
    action = action_of(session, 70)
    assert action.chunk == CHUNK and action.max_age_ms == LIMIT_MS and session.robot_schema is WIDE


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize(("now_ms", "sent"), [(100, True), (180, True), (181, False), (500, False)])
def test_an_answer_is_too_old_once_its_last_row_is(now_ms: int, sent: bool, chunks: bool):
    session = session_of(chunks=chunks)
    answered(session)
    events = session.take(now_ms * MS)
    outcome = next(event for event in events if isinstance(event, StatusEvent))
    assert outcome.disposition is (Disposition.ACTED if sent else Disposition.DROPPED)
    assert sent or outcome.reason == "ACTION_TOO_OLD"


@pytest.mark.parametrize(
    "chunk", [Chunk(CHUNK.row(0)), Chunk(CHUNK.values, HORIZON, 10.0), Chunk(CHUNK.values[:-3], 4, STEP_MS)]
)
def test_a_chunk_of_another_shape_is_withheld(chunk: Chunk):
    session = session_of(chunks=True)
    answered(session, chunk=chunk)
    reasons = [event.reason for event in session.take(0)]
    assert reasons == ["POLICY_OUTPUT_INVALID"] * 2


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 9)), max_size=600, unique_by=lambda each: each[0]))
def test_sent_chunks_are_the_last_ones(sent: list[tuple[int, int]]):
    chunks = SentChunks()
    for seq, horizon in sent:
        chunks.add(seq, horizon)
    kept = dict(sent[-MOST_SENT:])
    for seq in range(601):
        assert not chunks.has(seq, kept.get(seq, 0))
        assert seq not in kept or chunks.has(seq, kept[seq] - 1)


def test_the_age_of_what_the_robot_executes_is_that_of_the_answered_frame():
    chunks = SentChunks()
    chunks.add(1, 8, 1000)
    chunks.add(2, 1, 1500)
    frame = CheckedFrame(seq=3, stamp_ns=1800, images=())
    assert chunks.executed_age_ns(frame) is None
    assert chunks.executed_age_ns(replace(frame, playing=Playing(1, 2), arrived=Arrived(2, 5))) == 800
    single = replace(frame, arrived=Arrived(2, 5))
    assert chunks.executed_age_ns(single) == 300, "a single action is executed from its arrival"
    assert chunks.executed_age_ns(replace(single, resting=True)) is None
    assert chunks.executed_age_ns(replace(frame, arrived=Arrived(1, 5))) is None, "no row of the chunk is due"


def test_only_what_was_handed_out_counts_as_sent():
    session = session_of(chunks=False)
    answered(session)
    assert not session.answers.sent.has(1, 0)
    action_of(session, 5)
    assert session.answers.sent.has(1, 0) and not session.answers.sent.has(1, 1)


@pytest.mark.parametrize(("chunks", "valid_for_ms"), [(True, HORIZON * STEP_MS), (False, RULES.action_ttl_ms)])
def test_a_chunk_is_not_valid_for_longer_than_it_lasts(chunks: bool, valid_for_ms: float):
    session = session_of(chunks=chunks)
    answered(session)
    assert RULES.action_ttl_ms > HORIZON * STEP_MS
    assert action_of(session, 0).valid_for_ms == valid_for_ms


def test_a_frame_may_wait_for_its_turn_as_long_as_a_row_will_be_due():
    session = session_of(chunks=True)
    session.age_limit.forecast_ns = 150 * MS
    assert session.age_limit.ns == LIMIT_MS * MS
    assert session.age_limit.spare_ns == (LIMIT_MS + (HORIZON - 1) * STEP_MS - 150) * MS
