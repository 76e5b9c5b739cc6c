"""Rules of a session that a stream shows only with a real model behind it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edgeflow.contract import Chunk, Speculation
from edgeflow.ipc.messages import CloseSession, FrameDropped, FrameResult, ResetSession, SubmitFrame
from edgeflow.scheduler.turns import BURST
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.answers import LATE_IN_A_ROW
from edgeflow.service.sessions.frames import INVALID_IN_A_ROW, ActionEvent, End, NoticeEvent, StatusEvent
from edgeflow.service.sessions.rates import CHANGES, SECOND_NS
from edgeflow.service.sessions.session import Session
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Disposition
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES


def submit(session: Session, seq: int, instruction: str | None = None) -> SubmitFrame:
    """A frame on its way to the worker."""
    session.admit(seq, seq, seq)
    session.offer(CheckedFrame(seq=seq, stamp_ns=seq, images=(b"abc",), instruction=instruction), seq)
    assert session.start_decoding(seq, alone=True) is not None
    session.decoded(b"abc", 1)
    frame = session.start_sending(seq)
    assert frame is not None
    return frame


def answer(session: Session, frame: SubmitFrame, took_ns: int = 1, valid: bool = True) -> None:
    session.result(
        FrameResult(
            session=1,
            epoch=frame.epoch,
            seq=frame.seq,
            chunk=Chunk((0.0, 0.0, 0.5)),
            token_ids=[7, 8, 9],
            valid=valid,
            queue_ns=1,
            inference_ns=took_ns,
            passes=3,
            settled=3,
        )
    )


def reject(session: Session, frame: SubmitFrame) -> None:
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
    reject(session, bad)
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
    reject(session, first)  # of an epoch that is over: it left with it
    reject(session, second)
    assert submit(session, 3).instruction == "first"
    dispositions = [e.disposition for e in session.take(9) if isinstance(e, StatusEvent)]
    assert dispositions == [Disposition.DROPPED, Disposition.REJECTED]


def give_up(session: Session, frame: SubmitFrame, reason: Reason) -> None:
    session.dropped(
        FrameDropped(
            session=1,
            epoch=frame.epoch,
            seq=frame.seq,
            disposition=Disposition.SUPERSEDED.value,
            code="",
            reason=reason,
            text=f"because of {reason}",
        )
    )


def drafting(max_age_ms: int | None = None) -> Session:
    age_ns = max_age_ms * MS if max_age_ms else None
    session = Session(1, replace(REQUEST, max_action_age_ns=age_ns), SCHEMA, RULES, 0)
    session.speculation = Speculation()
    return session


def commands(session: Session, now_ns: int = 9) -> list[str]:
    return [event.command.value for event in session.take(now_ns) if isinstance(event, ActionEvent)]


def test_frames_too_old_while_newer_ones_are_in_flight_mean_hold_only_in_a_row():
    session = drafting()
    for seq in range(1, LATE_IN_A_ROW):
        give_up(session, submit(session, seq), Reason.ACTION_TOO_OLD)
        assert commands(session) == []
    answer(session, submit(session, 10))
    assert commands(session) == ["act"]
    for seq in range(11, 11 + LATE_IN_A_ROW):
        give_up(session, submit(session, seq), Reason.ACTION_TOO_OLD)
    assert commands(session) == ["hold"], "a robot whose frames are all too late has no action"
    answer(session, submit(session, 20))
    assert commands(session) == ["act"]


@pytest.mark.parametrize("newer", [True, False])
def test_an_action_too_old_gives_way_to_a_newer_frame_in_flight(newer: bool):
    session = drafting(max_age_ms=50)
    first = submit(session, 1)
    if newer:
        submit(session, 2)
    answer(session, first)
    told = session.take(60 * MS)
    (left,) = [event for event in told if isinstance(event, StatusEvent)]
    assert (left.seq, left.reason) == (1, Reason.ACTION_TOO_OLD)
    assert left.disposition is (Disposition.SUPERSEDED if newer else Disposition.DROPPED)
    assert [event.command.value for event in told if isinstance(event, ActionEvent)] == ([] if newer else ["hold"])


def test_frames_superseded_for_the_same_reason_share_a_status():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    frames = [submit(session, seq) for seq in range(1, 6)]
    for frame, reason in zip(frames, [Reason.SUPERSEDED] * 2 + [Reason.OVERTAKEN] * 3, strict=True):
        give_up(session, frame, reason)
    told = [event for event in session.take(9) if isinstance(event, StatusEvent)]
    assert [(event.seq, event.frames, event.disposition, event.reason) for event in told] == [
        (1, 2, Disposition.SUPERSEDED, Reason.SUPERSEDED),
        (3, 3, Disposition.SUPERSEDED, Reason.OVERTAKEN),
    ]
    assert told[1].text == "because of OVERTAKEN"


def test_an_action_says_how_its_frame_was_verified_whatever_came_later():
    """The pace changes while a frame is with the worker: the frame keeps its own."""
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    session.speculation = Speculation(1)
    first = submit(session, 1)
    session.speculation = None
    second = submit(session, 2)
    seen = []
    for frame in (first, second):
        answer(session, frame)
        seen += [event for event in session.take(9) if isinstance(event, ActionEvent)]
    assert [(event.seq, event.tolerance_bins, event.max_passes) for event in seen] == [(1, 1, 3), (2, 0, 0)]
    assert [(event.settled, event.unsettled) for event in seen] == [(3, 0)] * 2


def offer(session: Session, seq: int, now_ns: int, instruction: str | None = None) -> None:
    session.admit(seq, now_ns, now_ns)
    session.offer(CheckedFrame(seq=seq, stamp_ns=now_ns, images=(b"abc",), instruction=instruction), now_ns)


def decoded(session: Session, now_ns: int, *, alone: bool) -> int | None:
    """The number of the frame that is decoded now, if there is one."""
    frame = session.start_decoding(now_ns, alone=alone)
    if frame is None:
        return None
    session.decoded(b"abc", 1)
    return frame.seq


@pytest.mark.parametrize(("alone", "most"), [(False, 105 + BURST), (True, 600)])
def test_beside_others_frames_have_their_turn_at_the_declared_rate(alone: bool, most: int):
    """Ten frames a second were declared, 60 are sent for ten seconds; each turn is the newest frame's."""
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    turns = 0
    for seq in range(1, 601):
        now_ns = seq * SECOND_NS // 60
        offer(session, seq, now_ns)
        went = decoded(session, now_ns, alone=alone)
        assert went in (None, seq)
        turns += went is not None
    assert 0.97 * most <= turns <= most + 1


def test_a_waiting_frame_says_when_its_turn_is():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    for seq in range(1, BURST + 1):
        offer(session, seq, 0)
        turn_ns = session.turn_ns(0)
        assert turn_ns is not None and turn_ns <= 0
        assert decoded(session, 0, alone=False) == seq
    offer(session, 9, 0)
    turn_ns = session.turn_ns(0)
    assert turn_ns is not None and 94 * MS < turn_ns < 96 * MS
    assert decoded(session, turn_ns - 1, alone=False) is None
    assert decoded(session, turn_ns, alone=False) == 9 and session.turn_ns(turn_ns) is None


def test_an_instruction_with_frames_above_the_rate_does_not_take_effect():
    session = Session(1, REQUEST, SCHEMA, replace(RULES, rejected_frames=1000), 0)
    for seq in range(1, 1001):
        offer(session, seq, 0, f"instruction {seq}")
    assert session.epoch <= 1 + CHANGES and session.instruction == f"instruction {session.epoch - 1}"
    rejected = [event for event in session.take(0) if isinstance(event, StatusEvent) and event.code]
    assert {event.reason for event in rejected if event.disposition is Disposition.REJECTED} == {Reason.RATE_EXCEEDED}


def test_a_session_without_a_frame_keeps_its_capacity_for_one_second():
    session = Session(1, replace(REQUEST, control_period_ns=10 * SECOND_NS), SCHEMA, RULES, 0)
    session.tick(SECOND_NS)
    assert session.active and not session.parked
    for ms in (1_001, 1_021):
        session.tick(ms * MS)
    assert session.parked and not session.active and list(session.commands) == [CloseSession(1)]


def test_a_robot_of_a_long_period_keeps_its_capacity_for_five_periods_after_a_frame():
    session = Session(1, replace(REQUEST, control_period_ns=10 * SECOND_NS), SCHEMA, RULES, 0)
    answer(session, submit(session, 1))
    session.take(1)
    session.tick(29 * SECOND_NS)
    assert session.active and not session.parked


def test_a_robot_that_falls_silent_again_holds_again():
    session, period_ns = Session(1, REQUEST, SCHEMA, RULES, 0), REQUEST.control_period_ns
    for seq, sent_ns in ((1, 0), (2, 8 * period_ns)):
        stamped(session, seq, sent_ns, sent_ns, took_ms=1)
        silent_ns = sent_ns + 6 * period_ns
        session.tick(silent_ns)
        assert commands(session, silent_ns) == ["hold"]
        session.tick(silent_ns + period_ns)
        assert commands(session, silent_ns + period_ns) == [], "once"


def test_the_first_frame_after_a_hold_or_a_reset_says_that_the_robot_rested():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    told = [submit(session, 1).rested, submit(session, 2).rested]
    session.hold(Reason.ACTION_TOO_OLD)
    told += [submit(session, 3).rested, submit(session, 4).rested]
    session.reset()
    told += [submit(session, 5).rested, submit(session, 6).rested]
    assert told == [False, False, True, False, True, False]


def test_an_answer_that_is_not_taken_gives_way_to_the_next():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    first, second = submit(session, 1), submit(session, 2)
    answer(session, first)
    answer(session, second)
    events = session.take(3)
    assert [(each.seq, each.disposition) for each in events if isinstance(each, StatusEvent)] == [
        (1, Disposition.SUPERSEDED),
        (2, Disposition.ACTED),
    ]
    assert [each.seq for each in events if isinstance(each, ActionEvent)] == [2]


def test_a_fault_rejects_frames_and_its_stop_stays_in_force():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    for seq in range(1, INVALID_IN_A_ROW + 1):
        assert not session.answers.invalid.fault
        answer(session, submit(session, seq), valid=False)
    session.hold(Reason.INGRESS_SILENT)
    assert commands(session) == ["stop"]
    session.admit(9, 9, 9)
    session.offer(CheckedFrame(seq=9, stamp_ns=9, images=(b"abc",)), 9)
    assert [(each.seq, each.reason) for each in session.take(9) if isinstance(each, StatusEvent)] == [(9, Reason.FAULT)]
    assert decoded(session, 9, alone=True) is None


def default_session() -> Session:
    """Nothing but validity and forecast limit the age: 250 and 50 ms."""
    session = Session(1, replace(REQUEST, max_action_age_ns=None), SCHEMA, RULES, 0)
    session.age_limit.forecast_ns = 50 * MS
    return session


def acted(session: Session, seq: int, begin_ms: int, took_ms: int, late_ms: int = 0) -> bool:
    """A frame that the robot sent at `begin_ms` and that was `late_ms` on its way; True if its action is sent."""
    return stamped(session, seq, begin_ms * MS, (begin_ms + late_ms) * MS, took_ms)


def stamped(session: Session, seq: int, stamp_ns: int, now_ns: int, took_ms: int) -> bool:
    """A frame that arrives now; True if its action is sent."""
    session.admit(seq, stamp_ns, now_ns)
    session.offer(CheckedFrame(seq=seq, stamp_ns=stamp_ns, images=(b"abc",)), now_ns)
    assert session.start_decoding(now_ns, alone=True) is not None
    session.decoded(b"abc", 1)
    frame = session.start_sending(now_ns)
    assert frame is not None
    answer(session, frame, took_ms * MS)
    events = session.take(now_ns + took_ms * MS)
    return any(isinstance(event, ActionEvent) and event.seq == seq for event in events)


def test_an_action_s_age_counts_from_the_stamp_where_the_transport_was_slower_than_usual():
    session = default_session()
    assert acted(session, 1, 0, 40)
    assert acted(session, 2, 100, 40, late_ms=200)
    assert not acted(session, 3, 500, 40, late_ms=300)
    assert acted(session, 4, 1000, 40)


def test_the_limit_follows_frames_that_take_longer_than_forecast_but_no_single_stall():
    session = default_session()
    assert acted(session, 1, 0, 40)
    verdicts = [acted(session, seq, 1000 * seq, 1500 if seq == 9 else 40) for seq in range(2, 20)]
    assert verdicts == [seq != 9 for seq in range(2, 20)] and session.age_limit.ns == 300 * MS
    verdicts = [acted(session, seq, 1000 * seq, 600) for seq in range(20, 30)]
    assert verdicts == [False] * 4 + [True] * 6 and 850 * MS <= session.age_limit.ns <= 851 * MS


def action_times(session: Session, sent_ns: int, frame_ns: int, until_ns: int) -> tuple[list[int], list[str]]:
    """A robot that sends every `sent_ns` beside an active other: when its actions leave, and the reasons of HOLDs."""
    actions: list[int] = []
    holds: list[str] = []
    now_ns, next_ns, seq = 0, 0, 0
    while now_ns < until_ns:
        if now_ns >= next_ns:
            seq, next_ns = seq + 1, next_ns + sent_ns
            offer(session, seq, now_ns)
        if decoded(session, now_ns, alone=False) is not None and (frame := session.start_sending(now_ns)) is not None:
            answer(session, frame, frame_ns)
            for event in session.take(now_ns + frame_ns):
                if isinstance(event, ActionEvent):
                    actions.append(now_ns) if event.seq else holds.append(event.reason)
        turn_ns = session.turn_ns(now_ns)
        now_ns = next_ns if turn_ns is None else min(next_ns, max(turn_ns, now_ns + MS))
    return actions, holds


@pytest.mark.parametrize("declared_ms", [500, 400, 100])
@pytest.mark.parametrize("faster_percent", [1, 2, 3, 5, 10, 30, 70])
def test_a_robot_faster_than_it_declared_is_not_held_by_its_waits(declared_ms: int, faster_percent: int):
    request = replace(REQUEST, control_period_ns=declared_ms * MS, max_action_age_ns=None)
    session = Session(1, request, SCHEMA, RULES, 0)
    session.age_limit.forecast_ns = 60 * MS
    period_ns = declared_ms * MS * 100 // (100 + faster_percent)
    actions, holds = action_times(session, period_ns, 50 * MS, 120 * SECOND_NS)
    gaps = [later - sooner for sooner, later in pairwise(actions)]
    assert not holds and max(gaps) <= 2.2 * declared_ms * MS
    assert len(actions) <= 1.06 * 120_000 / declared_ms + BURST + 1


def test_a_robot_that_waits_for_each_answer_hears_of_a_turn_that_came_too_late():
    session = Session(1, replace(REQUEST, control_period_ns=SECOND_NS, max_action_age_ns=None), SCHEMA, RULES, 0)
    for seq in range(1, BURST + 1):
        offer(session, seq, 0)
        assert decoded(session, 0, alone=False) == seq
    offer(session, 9, 0)
    assert decoded(session, 0, alone=False) is None
    turn_ns = session.turn_ns(0)
    assert turn_ns is not None and decoded(session, turn_ns, alone=False) is None
    last = [event for event in session.take(turn_ns) if isinstance(event, StatusEvent)][-1]
    assert (last.seq, last.disposition, last.reason) == (9, Disposition.REJECTED, Reason.RATE_EXCEEDED)
    offer(session, 10, turn_ns)
    assert decoded(session, turn_ns, alone=False) == 10


def test_measured_times_raise_the_age_limit_within_bounds():
    session = Session(1, replace(REQUEST, max_action_age_ns=None), SCHEMA, RULES, 0)
    session.age_limit.forecast_ns = 100 * MS
    for _ in range(100):
        session.age_limit.times.observe(60 * SECOND_NS)
    assert session.age_limit.ns == RULES.action_ttl_ms * MS + 2 * SECOND_NS
    session.age_limit.forecast_ns = SECOND_NS
    assert session.age_limit.ns == RULES.action_ttl_ms * MS + 4 * SECOND_NS


def test_an_ended_session_wants_no_ring():
    session = Session(1, REQUEST, SCHEMA, RULES, 0)
    for ms in (1_001, 1_021):
        session.tick(ms * MS)
    offer(session, 1, 1_022 * MS)
    assert session.ring_wanted
    session.end(End("CANCELLED", Reason.CLIENT_GONE))
    assert not session.ring_wanted
