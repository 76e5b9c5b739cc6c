"""Rows in time: which one is due, until when, and which one was played at a capture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow_client.timeline import MAX_PLAYS, PlayLog, Timeline, arrival_start_ns
from edgeflow_client.trajectory import Playing

MS = 1_000_000
TEN = Timeline(1000 * MS, 20 * MS, 10)
timelines = st.builds(Timeline, st.integers(0, 10**10), st.integers(1, 10**9), st.integers(2, 1000))
instants = st.integers(0, 2 * 10**10)


@pytest.mark.parametrize(
    ("at_ms", "row"), [(0, 0), (1000, 0), (1019.999, 0), (1020, 1), (1100, 5), (1199, 9), (1200, 9), (9000, 9)]
)
def test_a_row_is_due_from_its_moment_until_the_next_and_the_last_one_stays(at_ms, row):
    assert TEN.step_at(round(at_ms * MS)) == row


@given(timelines, instants)
def test_the_row_that_is_due_is_the_last_one_whose_moment_has_come(timeline, now_ns):
    begun = [step for step in range(timeline.horizon) if timeline.moment_ns(step) <= now_ns]
    due = begun[-1] if begun else 0
    assert timeline.step_at(now_ns) == due
    assert timeline.due_age_ns(now_ns) == now_ns - timeline.start_ns - due * timeline.step_ns


@given(timelines, instants, st.integers(0, 10**9))
def test_rows_never_go_back(timeline, now_ns, later_ns):
    assert timeline.step_at(now_ns) <= timeline.step_at(now_ns + later_ns)


@given(instants, st.integers(0, 10**9), st.integers(1, 5 * 10**8), st.none() | st.integers(1, 10**10))
def test_one_action_ends_as_it_always_did(stamp_ns, age_ns, validity_ns, limit_ns):
    one, received_ns = Timeline(stamp_ns), stamp_ns + age_ns
    ends = [received_ns + validity_ns] + ([] if limit_ns is None else [stamp_ns + limit_ns])
    assert one.valid_until_ns(received_ns, validity_ns, limit_ns) == min(ends)
    assert (one.step_at(received_ns), one.due_age_ns(received_ns)) == (0, age_ns)


@given(timelines, st.integers(0, 10**10), st.integers(1, 5 * 10**8), st.none() | st.integers(1, 10**10), st.data())
def test_no_row_is_executed_past_its_limit_nor_a_chunk_past_its_validity(
    timeline, late_ns, validity_ns, limit_ns, data
):
    received_ns = timeline.start_ns + late_ns
    until_ns = timeline.valid_until_ns(received_ns, validity_ns, limit_ns)
    assert until_ns <= received_ns + validity_ns
    if limit_ns is None:
        assert until_ns == received_ns + validity_ns
    elif timeline.due_age_ns(received_ns) < limit_ns:
        played_ns = data.draw(st.integers(received_ns, until_ns - 1))
        assert timeline.due_age_ns(played_ns) < limit_ns
        if until_ns < received_ns + validity_ns:
            assert timeline.due_age_ns(until_ns) >= limit_ns, "it ended too soon"


def test_a_limit_counts_from_the_moment_of_the_row():
    assert TEN.valid_until_ns(1010 * MS, 500 * MS, 50 * MS) == (1000 + 180 + 50) * MS
    assert TEN.valid_until_ns(1010 * MS, 100 * MS, 50 * MS) == 1110 * MS


def test_a_limit_shorter_than_a_step_ends_the_chunk_with_the_row_that_is_due():
    assert TEN.valid_until_ns(1045 * MS, 500 * MS, 15 * MS) == 1055 * MS


def test_the_log_has_the_chunk_executed_at_a_moment():
    log = PlayLog()
    assert log.at(0) is None
    log.begin(3, Timeline(1000, 10, 5), 1012, 1100, 1050)
    log.begin(4, Timeline(1015, 10, 5), 1030, 1200, 1065)
    log.end(1060)
    log.end(1070)
    found = {instant: log.at(instant) for instant in (1011, 1012, 1029, 1030, 1059, 1060, 2000)}
    assert found == {
        1011: None,
        1012: Playing(3, 1, 1000),
        1029: Playing(3, 2, 1000),
        1030: Playing(4, 1, 1015),
        1059: Playing(4, 4, 1015),
        1060: None,
        2000: None,
    }


def test_a_chunk_that_ran_out_is_not_executed():
    log = PlayLog()
    log.begin(3, Timeline(1000, 10, 5), 1012, 1020, 1050)
    log.end(1500)
    assert log.at(1019) == Playing(3, 1, 1000)
    assert log.at(1020) is None


def test_a_single_action_is_not_a_chunk():
    log = PlayLog()
    log.begin(3, Timeline(1000), 1012, 1100, 1050)
    assert log.at(1020) is None


def test_the_log_does_not_grow():
    log = PlayLog()
    for seq in range(1, 1001):
        log.begin(seq, Timeline(100 * seq, 10, 5), 100 * seq, 100 * seq + 90, 100 * seq + 50)
    assert log.at(100 * 1000) == Playing(1000, 0, 100_000)
    assert log.at(100 * (1000 - MAX_PLAYS)) is None
    assert log.at(100 * (1001 - MAX_PLAYS)) == Playing(1001 - MAX_PLAYS, 0, 100 * (1001 - MAX_PLAYS))


@pytest.mark.parametrize(("until", "over", "rests"), [(1100, 1050, 1050), (1040, 1050, 1040)])
def test_a_robot_rests_once_its_rows_or_their_validity_are_over_and_until_the_next_begin(until, over, rests):
    log = PlayLog()
    assert log.rests_at(0)
    log.begin(3, Timeline(1000, 10, 5), 1012, until, over)
    assert [log.rests_at(at) for at in (1011, 1012, rests - 1, rests)] == [False, False, False, True]
    log.begin(4, Timeline(1200, 10, 5), 1210, 1400, 1250)
    assert not log.rests_at(1205)  # captured before the chunk that has begun since
    log.end(1220)
    assert not log.rests_at(1219) and log.rests_at(1220)


@pytest.mark.parametrize(("arrives_ms", "starts_ms"), [(0, 0), (24, 0), (25, 50), (388, 400), (558, 550), (-5, 0)])
def test_an_answer_begins_on_arrival_with_a_row_of_at_least_half_a_step(arrives_ms: int, starts_ms: int):
    start_ns = arrival_start_ns(7 * MS, (7 + arrives_ms) * MS, 50 * MS)
    assert start_ns == (7 + starts_ms) * MS
    timeline = Timeline(start_ns, 50 * MS, 40)
    assert timeline.step_at((7 + arrives_ms) * MS) == 0
    assert timeline.moment_ns(1) - (7 + arrives_ms) * MS > 25 * MS - 1
