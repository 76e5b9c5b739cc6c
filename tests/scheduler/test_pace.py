"""Between serial and pipelined: which passes a depth gives, and what it costs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeflow.contract import Pace, PassTimes
from edgeflow.scheduler.cost import CostModel, PassSample
from edgeflow.scheduler.forecast import ForecastSession, forecast
from edgeflow.scheduler.pace import depths_of, pace_of, rounds_of
from edgeflow.scheduler.plan import Frame, FrameRef
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow_client.types import Mode

MS = 1_000_000
TIMES = PassTimes(
    stages=7, prefill_ns=60 * MS, two_prefills_ns=110 * MS, packed_ns=66 * MS, decode_ns=10 * MS, decodes_ns=16 * MS
)


def limits(sessions: int = 8, row_budget: int = 1000, drain_ms: int = 2) -> SchedulerLimits:
    return SchedulerLimits(7, sessions, row_budget, drain_ms * MS)


def test_depths_that_differ_in_effect():
    assert depths_of(7) == (1, 2, 3, 4, 7)
    assert [rounds_of(depth, 7) for depth in range(1, 8)] == [7, 4, 3, 2, 2, 2, 1]
    assert depths_of(1) == (1,)
    assert pace_of(Mode.DEPTH, 7, 6) == Pace(4)
    assert (pace_of(Mode.SERIAL, 7), pace_of(Mode.PIPELINED, 7)) == (Pace(1), Pace(7))
    with pytest.raises(ValueError, match="auto"):
        pace_of(Mode.AUTO, 7)


def test_a_tick_of_depth_three_is_one_packed_pass_and_two_decode_passes():
    scheduler = Scheduler(limits())
    scheduler.open(0, 1, Pace(3))
    shapes = []
    for seq in range(1, 5):
        scheduler.offer(Frame(FrameRef(0, 1, seq), 10))
        for _ in range(3):
            planned = scheduler.plan(0)
            assert planned is not None
            shapes.append(sorted((segment.sequence.seq, segment.stage) for segment in planned.segments))
    assert shapes[6:9] == [[(1, 6), (2, 3), (3, 0)], [(2, 4), (3, 1)], [(2, 5), (3, 2)]]
    assert shapes[9] == [(2, 6), (3, 3), (4, 0)], "a frame leaves in its third tick"


def test_an_earlier_deadline_goes_first_when_not_all_fit():
    scheduler = Scheduler(limits(row_budget=10))
    for session, deadline_ns in ((0, 30), (1, 20), (2, 10)):
        scheduler.open(session, 1, Pace(1))
        scheduler.offer(Frame(FrameRef(session, 1, 1), 10, deadline_ns))
    first = [scheduler.plan(0) for _ in range(14)]
    order = [planned.segments[0].sequence.session for planned in first if planned is not None]
    assert order == [2] * 7 + [1] * 7


def test_pass_times_lie_on_lines_between_the_corners():
    assert TIMES.pass_ns(1, 0) == 60 * MS
    assert TIMES.pass_ns(1, 6) == 66 * MS
    assert TIMES.pass_ns(2, 0) == 110 * MS
    assert TIMES.pass_ns(2, 12) == 122 * MS
    assert TIMES.pass_ns(0, 1) == 10 * MS
    assert TIMES.pass_ns(0, 6) == 16 * MS


def test_rows_beyond_a_full_packed_pass_cost_what_they_cost():
    times = replace(TIMES, row_ns=MS // 2)
    assert [times.pass_ns(1, rows) - times.packed_ns for rows in (6, 7, 11)] == [0, MS // 2, 5 * MS // 2]
    assert times.pass_ns(2, 12) == TIMES.pass_ns(2, 12)
    assert times.pass_ns(2, 15) == TIMES.pass_ns(2, 12) + 3 * MS // 2
    assert times.pass_ns(0, 20) == TIMES.pass_ns(0, 20), "passes without a prefill keep their slope"
    assert times.pass_ns(1, 12) > TIMES.pass_ns(1, 12) == TIMES.packed_ns
    assert replace(times, stages=1).pass_ns(1, 4) == times.prefill_ns + 2 * MS


def test_a_row_is_scaled_with_the_passes_that_have_a_prefill():
    times = replace(TIMES, row_ns=MS // 2, launch_ns=5)
    assert times.scaled(200) == PassTimes(
        stages=7,
        prefill_ns=120 * MS,
        two_prefills_ns=220 * MS,
        packed_ns=132 * MS,
        decode_ns=20 * MS,
        decodes_ns=32 * MS,
        row_ns=MS,
        launch_ns=5,
    )
    assert times.corrected(200, kind="prefill").row_ns == MS
    assert times.corrected(200, kind="decode").row_ns == MS // 2
    assert TIMES.scaled(50).row_ns == 0


def test_a_forecast_of_a_lone_robot_is_the_closed_form():
    """Design: r = ceil(K/d) rounds a tick; a frame's last round comes in its tick d."""
    alone = {
        depth: forecast(TIMES, limits(), [ForecastSession(pace=Pace(depth), period_ns=0)])[0] for depth in depths_of(7)
    }
    for depth, seen in alone.items():
        rounds = rounds_of(depth, 7)
        rows = [stage for stage in range(1, 7) if stage % rounds == 0]
        packed = TIMES.pass_ns(1, len(rows))
        tick = packed + sum(
            TIMES.pass_ns(0, sum(stage % rounds == turn for stage in range(7))) for turn in range(1, rounds)
        )
        assert seen.fps == pytest.approx(1e9 / tick, rel=0.03), depth
        assert (depth - 1) * tick < seen.age_ns <= depth * tick
    assert alone[1].age_ns == 120 * MS
    assert alone[7].age_ns == 7 * 66 * MS


def test_with_a_slow_camera_frames_in_flight_are_drained():
    (seen,) = forecast(TIMES, limits(), [ForecastSession(pace=Pace(7), period_ns=1000 * MS)])
    assert seen.fps == pytest.approx(1, rel=0.05)
    assert seen.age_ns == (60 + 2 + 6 * 10) * MS


def test_a_fast_camera_skips_frames_instead_of_adding_latency():
    (seen,) = forecast(TIMES, limits(), [ForecastSession(pace=Pace(1), period_ns=10 * MS)])
    assert seen.fps == pytest.approx(1000 / 120, rel=0.05)
    assert 120 * MS <= seen.age_ns <= seen.worst_age_ns <= 130 * MS


def test_robots_share_the_device():
    for seen in forecast(
        TIMES, limits(), [ForecastSession(pace=Pace(1), period_ns=0), ForecastSession(pace=Pace(1), period_ns=0)]
    ):
        assert seen.fps == pytest.approx(1000 / (110 + 6 * 11.2), rel=0.02)


def test_small_drift_is_kept_and_large_drift_is_taken_up():
    model = CostModel(TIMES)
    assert not model.observe([PassSample(1, 6, 75 * MS)] * 40, 0)
    assert model.times == TIMES
    later_ns = 2000 * MS
    assert not model.observe([PassSample(1, 6, 99 * MS)] * 19, later_ns), "too few passes to judge by"
    assert model.observe([PassSample(1, 6, 99 * MS)], later_ns)
    assert model.times.packed_ns == 99 * MS
    assert model.times.decode_ns == TIMES.decode_ns, "passes without a prefill were not seen"
    assert model.observe([PassSample(0, 1, 5 * MS)] * 20, later_ns)
    assert model.times.decode_ns == 5 * MS


def test_a_pass_that_a_stopped_worker_delayed_is_no_drift():
    model, now_ns = CostModel(TIMES), 0
    for took_ms in (66, 66, 766, 66, 66):
        now_ns += (took_ms + 334) * MS
        assert not model.observe([PassSample(1, 6, took_ms * MS)], now_ns)
    assert model.times == TIMES


@pytest.mark.parametrize("rate_hz", [2, 4, 10, 20])
def test_noise_of_a_busy_host_is_no_drift(rate_hz: int):
    """Passes of a minute vary by 10 %, and every twentieth takes up to four times as long."""
    model, dice = CostModel(TIMES), random.Random(rate_hz)
    for frame in range(60 * rate_hz):
        spike = dice.uniform(1.5, 4) if dice.random() < 0.05 else 1
        took_ns = round(TIMES.packed_ns * dice.lognormvariate(0, 0.1) * spike)
        model.observe([PassSample(1, 6, took_ns)], frame * 1000 * MS // rate_hz)
    assert model.times == TIMES


def test_rates_are_measured_between_actions():
    """A window that is no whole number of periods must not cost a robot a part of its rate."""
    for count in (1, 2, 3, 5):
        for seen in forecast(TIMES, limits(), [ForecastSession(pace=Pace(1), period_ns=1000 * MS)] * count):
            assert seen.fps == pytest.approx(1, rel=0.002)
