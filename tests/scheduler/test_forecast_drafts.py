"""Forecasts of robots whose frames draft, against a simulation that has no scheduler."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import pytest

from edgeflow.contract import Pace, PassTimes, Speculation
from edgeflow.scheduler.forecast import AnswerForecast, Forecast, ForecastSession, by_mode, forecast
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.scheduler.verification import WHOLE, VerificationPasses
from tests.cases import pairs_by_day

MS = 1_000_000
STAGES = 7
TIMES = PassTimes(
    stages=STAGES,
    prefill_ns=50 * MS,
    two_prefills_ns=100 * MS,
    packed_ns=52 * MS,
    decode_ns=13 * MS,
    decodes_ns=14 * MS,
    row_ns=MS // 5,
)
SHARES = (20, 35, 20, 12, 7, 4, 2)
LIMITS = SchedulerLimits(STAGES, 8, 1000, 2 * MS)


def verification(percent: tuple[int, ...] = SHARES) -> VerificationPasses:
    shares = [WHOLE * each // 100 for each in percent[1:]]
    return VerificationPasses((WHOLE - sum(shares), *shares))


def robot(
    *, max_passes: int = 0, patience_ns: int = 0, period_ns: int = 0, known: VerificationPasses | None = None
) -> ForecastSession:
    pace = Pace(0, Speculation(max_passes=max_passes))
    return ForecastSession(pace=pace, period_ns=period_ns, patience_ns=patience_ns, verification=known)


def simulated(asked: ForecastSession, *, passes: int = 20_000) -> Forecast:
    """One robot whose frames are always at hand, drawn at random: a frame begins in every pass, the others go on; all
    that are verified leave with the newest of them as the only action, and those before it are overtaken.
    """
    assert asked.verification is not None and asked.pace.speculation is not None and asked.period_ns == 0
    dice, cumulative = random.Random(2), list(accumulate(asked.verification.shares))
    most = asked.pace.speculation.max_passes or STAGES
    now_ns, flying, ages, taken, overtaken = 0, [], [], 0, 0
    for _ in range(passes):
        late = [frame for frame in flying if 0 < asked.patience_ns <= now_ns - frame[0]]
        overtaken += len(late)
        flying = [frame for frame in flying if frame not in late]
        (verified_in,) = dice.choices(range(1, STAGES + 1), cum_weights=cumulative)
        rows = STAGES - 1 + sum(STAGES - had for _, had, _ in flying)
        flying.append((now_ns, 0, min(verified_in, most)))
        now_ns += TIMES.packed_ns + TIMES.row_ns * (rows - STAGES + 1)
        flying = [(since_ns, had + 1, needs) for since_ns, had, needs in flying]
        done = [index for index, (_, had, needs) in enumerate(flying) if had >= needs]
        if done:
            since_ns, had, _ = flying[done[-1]]
            overtaken += done[-1]
            flying = flying[done[-1] + 1 :]
            if flying and 0 < asked.patience_ns <= now_ns - since_ns:
                overtaken += 1
            else:
                ages.append(now_ns - since_ns)
                taken += had
    return Forecast(
        actions=len(ages),
        span_ns=now_ns,
        age_ns=sum(ages) // max(len(ages), 1),
        worst_age_ns=max(ages, default=0),
        passes=taken,
        overtaken=overtaken,
    )


@pytest.mark.parametrize(
    ("percent", "patience_ms", "max_passes"),
    pairs_by_day(
        [SHARES, (0, 60, 0, 0, 40, 0, 0), (5, 5, 10, 10, 20, 25, 25), (0, 0, 0, 0, 0, 0, 100)],
        [0, 120, 170],
        [0, 1, 2, 4],
    ),
)
def test_a_forecast_is_what_random_frames_get(max_passes: int, patience_ms: int, percent: tuple[int, ...]):
    asked = robot(max_passes=max_passes, patience_ns=patience_ms * MS, known=verification(percent))
    (found,), right = forecast(TIMES, LIMITS, [asked]), simulated(asked)
    of_few = 0.6 / max(found.actions, 1) ** 0.5  # most frames expire
    assert found.fps == pytest.approx(right.fps, rel=max(0.05, of_few))
    assert found.age_ns == pytest.approx(right.age_ns, rel=0.05)
    assert found.passes_per_action == pytest.approx(right.passes_per_action, rel=0.05)
    assert found.overtaken_share == pytest.approx(right.overtaken_share, abs=0.025)
    assert found.worst_age_ns <= right.worst_age_ns
    assert found.begun_fps == pytest.approx(right.begun_fps, rel=0.02)


def test_before_a_measurement_each_frame_takes_all_passes():
    (found,) = forecast(TIMES, LIMITS, [robot()])
    assert (found.passes_per_action, found.overtaken, found.assumed) == (STAGES, 0, True)
    assert found == replace(
        forecast(TIMES, LIMITS, [robot(known=verification((0, 0, 0, 0, 0, 0, 100)))])[0], assumed=True
    )


def test_slow_frames_leave_one_by_one():
    (found,) = forecast(TIMES, LIMITS, [robot(period_ns=1000 * MS, patience_ns=60 * MS, known=verification())])
    mean = sum(passes * share for passes, share in enumerate(SHARES, 1)) / 100
    assert found.overtaken == 0, "there is never a newer one in flight"
    assert found.fps == pytest.approx(1, rel=0.01)
    assert found.passes_per_action == pytest.approx(mean, rel=0.05)
    assert found.age_ns == pytest.approx(52 * MS + (mean - 1) * 13.5 * MS, rel=0.05)
    assert found.worst_age_ns >= 52 * MS + 6 * 13 * MS


def test_no_action_of_a_busy_robot_is_older_than_its_patience():
    for patience_ms in (60, 110, 160, 240):
        (found,) = forecast(TIMES, LIMITS, [robot(patience_ns=patience_ms * MS, known=verification())])
        assert found.actions and found.worst_age_ns < patience_ms * MS


def test_robots_that_draft_and_others_share_a_device():
    robots = [
        robot(period_ns=90 * MS, known=verification()),
        ForecastSession(pace=Pace(1), period_ns=800 * MS),
        robot(period_ns=200 * MS),
    ]
    found = forecast(TIMES, LIMITS, robots)
    assert [each.begun_fps for each in found[1:]] == pytest.approx([1.25, 5], rel=0.03)
    assert found[1].overtaken == 0 and found[0].overtaken > 0


def test_the_modes_are_those_of_the_paces():
    modes = by_mode(TIMES, LIMITS, verification())
    assert list(modes) == ["serial", "depth 2", "depth 3", "depth 4", "pipelined", "speculative"]
    assert modes["speculative"] == forecast(TIMES, LIMITS, [robot(known=verification())])[0]
    assert modes["serial"] == forecast(TIMES, LIMITS, [ForecastSession(pace=Pace(1), period_ns=0)])[0]
    assert [mode for mode, seen in by_mode(TIMES, LIMITS).items() if seen.assumed] == ["speculative"]
    assert list(by_mode(replace(TIMES, stages=1), replace(LIMITS, stages=1))) == ["serial"]


def test_with_drafts_the_next_answer_may_take_as_long_as_the_oldest():
    """On average they come much sooner, and an action that is valid for the average alone leaves the robot holding."""
    seen = Forecast(actions=10, span_ns=10_000, age_ns=2_000, worst_age_ns=7_000)
    assert AnswerForecast.of(seen, Pace(0, Speculation())) == AnswerForecast(age_ns=7_000, gap_ns=7_000)
    for pace in (Pace(0, Speculation(0, 1)), Pace(1), Pace(7)):
        assert AnswerForecast.of(seen, pace) == AnswerForecast(age_ns=7_000, gap_ns=1_000)
