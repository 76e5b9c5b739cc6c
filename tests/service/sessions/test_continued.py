"""What control knows about the chunk that a robot plays: whether it may be continued, and how old answers get."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.ipc.messages import FrameResult, SubmitFrame
from edgeflow.scheduler.answer_ages import KEPT_AGES, AnswerAges
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent, Event, StatusEvent
from edgeflow.service.sessions.session import Session
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import Arrived, ChunkReport, Playing
from edgeflow_client.types import Disposition
from tests.service.sessions.test_chunks import CHUNK, STEP_MS, session_of

MS = 1_000_000


def result_of(frame: SubmitFrame, report: ChunkReport | None = None) -> FrameResult:
    """The worker's answer."""
    return FrameResult(
        session=1,
        epoch=frame.epoch,
        seq=frame.seq,
        chunk=CHUNK,
        token_ids=[],
        valid=True,
        queue_ns=0,
        inference_ns=30 * MS,
        passes=1,
        settled=0,
        report=report or ChunkReport(),
    )


class SlowSession:
    """A session whose frames take 30 ms."""

    def __init__(self, *, chunks: bool = True) -> None:
        self.session: Session = session_of(chunks=chunks)
        self.now_ns = 0
        self.seq = 0

    def frame(self, playing: Playing | None = None, instruction: str | None = None) -> SubmitFrame:
        """A frame on its way to the worker."""
        self.seq += 1
        session = self.session
        session.admit(self.seq, self.now_ns, self.now_ns)
        checked = CheckedFrame(
            seq=self.seq, stamp_ns=self.now_ns, images=(b"abc",), playing=playing, instruction=instruction
        )
        session.offer(checked, self.now_ns)
        assert session.start_decoding(self.now_ns, alone=True) is not None
        session.decoded(b"abc", 1)
        frame = session.start_sending(self.now_ns)
        assert frame is not None
        return frame

    def answered(self, frame: SubmitFrame, report: ChunkReport | None = None) -> list[Event]:
        """What the robot gets."""
        self.now_ns += 30 * MS
        self.session.result(result_of(frame, report))
        return self.session.take(self.now_ns)


def test_a_robot_that_waits_for_each_answer_continues_nothing():
    robot = SlowSession()
    robot.answered(robot.frame())
    assert (robot.frame(Playing(1, 0)).playing, robot.frame().start_delay_ns) == (Playing(1, 0), 0)
    robot.session.request = replace(robot.session.request, front="openpi")
    frame = robot.frame(Playing(1, 0))
    assert (frame.playing, frame.start_delay_ns) == (None, 30 * MS)


def test_before_the_first_answer_the_delay_is_the_forecast():
    robot = SlowSession()
    robot.session.age_limit.forecast_ns = 80 * MS
    assert robot.frame().delay_ns == 80 * MS


def test_a_chunk_that_was_handed_out_may_be_continued_after_the_delay_that_was_measured():
    robot = SlowSession()
    first = robot.frame()
    assert (first.playing, first.delay_ns) == (None, 0)
    robot.answered(first)
    second = robot.frame(Playing(1, 1))
    assert (second.playing, second.delay_ns) == (Playing(1, 1), 30 * MS)
    robot.session.answers.ages.arrived(1, 50 * MS)
    assert robot.frame(Playing(1, 2)).delay_ns == 50 * MS


@pytest.mark.parametrize("playing", [Playing(2, 0), Playing(1, 5), Playing((1 << 64) - 1, 0)])
def test_a_chunk_that_was_never_sent_is_not_continued(playing: Playing):
    robot = SlowSession()
    robot.answered(robot.frame())
    assert robot.frame(playing).playing is None


@pytest.mark.parametrize("change", ["hold", "reset", "instruction", "single actions"])
def test_nothing_from_before_is_continued(change: str):
    robot = SlowSession(chunks=change != "single actions")
    robot.answered(robot.frame())
    if change == "hold":
        robot.session.hold(Reason.INGRESS_SILENT)
    elif change == "reset":
        robot.session.reset()
    frame = robot.frame(Playing(1, 0), instruction="another" if change == "instruction" else None)
    assert (frame.playing, frame.delay_ns) == (None, 30 * MS)  # limits count from the delay all the same
    robot.answered(frame)
    assert (robot.frame(Playing(2, 0)).playing is None) == (change == "single actions")


def sent(events: list[Event]) -> list[tuple[str, int]]:
    """The commands among events, with the frames that they answer."""
    return [(event.command.value, event.seq) for event in events if isinstance(event, ActionEvent)]


def withdrawn(events: list[Event]) -> list[tuple[int, str, str, str]]:
    """The frames among events that left without an action."""
    statuses = [event for event in events if isinstance(event, StatusEvent)]
    return [
        (each.seq, each.disposition.value, each.code, each.reason)
        for each in statuses
        if each.disposition is not Disposition.ACTED
    ]


def test_an_answer_in_flight_at_a_hold_that_continues_the_chunk_of_before_is_withdrawn():
    robot = SlowSession()
    robot.answered(robot.frame())
    continuing, fresh, chained = robot.frame(Playing(1, 0)), robot.frame(), robot.frame(Playing(1, 0))
    robot.session.hold(Reason.INGRESS_SILENT)
    events = robot.answered(continuing, ChunkReport(continues=1, conditioned_steps=2))
    assert sent(events) == [("hold", 0)]
    assert withdrawn(events) == [(2, "dropped", "ABORTED", "INGRESS_SILENT")]
    assert sent(robot.answered(fresh)) == [("act", 3)]
    # Its guidance was fixed when the answer before was on its way, which the robot never got.
    events = robot.answered(chained, ChunkReport(continues=2, conditioned_steps=4))
    assert sent(events) == [] and withdrawn(events) == [(4, "dropped", "ABORTED", "INGRESS_SILENT")]
    after = robot.frame(Playing(3, 1))
    assert after.playing == Playing(3, 1)
    assert sent(robot.answered(after, ChunkReport(continues=3, conditioned_steps=2))) == [("act", 5)]


def test_an_answer_in_flight_at_a_hold_may_continue_one_that_began_a_new_motion():
    robot = SlowSession()
    robot.answered(robot.frame())
    fresh, continuing = robot.frame(), robot.frame()
    robot.session.hold(Reason.POLICY_OUTPUT_INVALID)
    assert sent(robot.answered(fresh)) == [("act", 2)]
    assert sent(robot.answered(continuing, ChunkReport(continues=2, conditioned_steps=2))) == [("act", 3)]


def test_an_answer_that_was_withdrawn_or_replaced_before_the_robot_got_it_begins_no_motion():
    robot = SlowSession()
    fresh, replaced, chained = robot.frame(), robot.frame(), robot.frame()
    robot.session.result(result_of(fresh))
    robot.session.hold(Reason.INGRESS_SILENT)
    robot.session.result(result_of(replaced))
    events = robot.answered(chained, ChunkReport(continues=2, conditioned_steps=2))
    assert sent(events) == [("act", 2)]
    assert withdrawn(events) == [
        (1, "dropped", "ABORTED", "INGRESS_SILENT"),
        (3, "dropped", "ABORTED", "INGRESS_SILENT"),
    ]


@pytest.mark.parametrize(("age_ms", "late"), [(2 * STEP_MS, False), (2 * STEP_MS + 1, True)])
def test_a_chunk_that_arrived_later_than_it_was_conditioned_on_is_known(age_ms: float, late: bool):
    robot = SlowSession()
    robot.answered(robot.frame())
    robot.answered(robot.frame(Playing(1, 1)), ChunkReport(continues=1, conditioned_steps=2))
    assert not robot.session.answers.ages.arrived(1, 500 * MS)  # it continued nothing
    assert robot.session.answers.ages.arrived(2, round(age_ms * MS)) is late
    assert not robot.session.answers.ages.arrived(2, 500 * MS)  # every frame repeats the newest


def test_an_age_beyond_any_that_is_executed_is_not_believed():
    robot = SlowSession()
    robot.answered(robot.frame())
    robot.session.answers.arrived(1, 10**15)
    oldest_ns = robot.session.age_limit.oldest_ns
    assert robot.session.answers.expected_delay_ns == oldest_ns
    assert oldest_ns == robot.session.age_limit.ns + robot.session.schema.reach_ns


def ages_of(server_ms: list[float], reported: dict[int, float]) -> AnswerAges:
    ages = AnswerAges()
    for seq, each in enumerate(server_ms, start=1):
        ages.sent(seq, round(each * MS))
        if seq in reported:
            ages.arrived(seq, round(reported[seq] * MS))
    return ages


def test_one_spike_does_not_move_what_is_expected_and_is_forgotten():
    assert ages_of([30.0] * 40, dict.fromkeys(range(1, 40), 30.0) | {40: 900.0}).expected_ns(0) == 30 * MS
    assert ages_of([900.0] + [30.0] * KEPT_AGES, {}).expected_ns(0) == 30 * MS
    assert ages_of([30.0] * 36 + [900.0] * 4, {}).expected_ns(0) == 900 * MS


@pytest.mark.parametrize(("later", "expected_ms"), [(0, 900), (1, 30), (2, 30), (18, 30)])
def test_a_slow_first_answer_does_not_delay_those_after_it(later: int, expected_ms: int):
    assert ages_of([900.0] + [30.0] * later, {}).expected_ns(0) == expected_ms * MS
    assert ages_of([900.0] * 2 + [30.0] * later, {}).expected_ns(0) == 900 * MS  # more than a spike


@pytest.mark.parametrize("later", [0, 1])
def test_of_a_first_answer_far_above_the_forecast_only_the_transport_counts(later: int):
    arrivals = {1: 770.0} | dict.fromkeys(range(2, 2 + later), 90.0)  # 40 ms of transport
    ages = ages_of([730.0] + [50.0] * later, arrivals)
    assert ages.expected_ns(30 * MS) == (90 if later else 70) * MS
    assert ages_of([730.0], {}).expected_ns(30 * MS) == 30 * MS
    assert ages_of([60.0], {1: 260.0}).expected_ns(30 * MS) == 260 * MS  # not far above: a slow network


@pytest.mark.parametrize(("answers", "expected_ms"), [(0, 144), (1, 144), (7, 144), (8, 94)])
def test_the_first_answers_may_have_been_lucky(answers: int, expected_ms: int):
    ages = ages_of([94.0] * answers, {})
    assert ages.expected_ns(144 * MS) == expected_ms * MS
    assert ages.expected_ns(0) == (94 * MS if answers else 0)


def test_transport_that_was_reported_counts_for_answers_whose_arrival_is_not_known():
    assert ages_of([30.0, 30.0, 80.0, 80.0], {1: 50.0, 2: 45.0}).expected_ns(0) == (80 + 15) * MS
    assert ages_of([30.0], {1: 10.0}).expected_ns(0) == 30 * MS  # not younger than in the service


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_the_expected_age_is_one_that_was_measured_and_few_were_above_it(ages_ns: list[int]):
    ages = AnswerAges()
    for seq, each in enumerate(ages_ns):
        ages.sent(seq, 0)
        ages.arrived(seq, each)
    last = ages_ns[-KEPT_AGES:]
    assert ages.expected_ns(0) in last
    few = 1 if len(last) >= 2 else 0
    assert sum(each > ages.expected_ns(0) for each in last) <= max(0.05 * len(last), few)
    assert sum(each >= ages.expected_ns(0) for each in last) >= 0.05 * len(last)


def test_an_arrival_of_what_was_not_sent_is_ignored():
    ages = AnswerAges()
    arrived = Arrived(7, 10)
    assert not ages.arrived(arrived.seq, arrived.age_ns) and ages.expected_ns(0) == 0
