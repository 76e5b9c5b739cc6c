"""The rate keeper, on a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.rate import RateKeeper

MS = 1_000_000
PERIOD_MS = 50
START_NS = 777 * MS


class LateLoop:
    """A loop whose sleeping moves the clock, late by so many ms each time, as an operating system does."""

    def __init__(self, period_s: float = PERIOD_MS / 1000, overslept_ms: float = 0.0) -> None:
        self.clock = ManualClock(START_NS)
        self._overslept_ns = round(overslept_ms * MS)
        self.rate = RateKeeper(period_s, clock=self.clock, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.clock.advance_ns(round(seconds * 1e9) + self._overslept_ns)

    def run(self, works_ms: list[float]) -> tuple[list[float], list[int]]:
        """When each step began, in ms since the start, and what each `wait` returned."""
        begun, missed = [], []
        for work_ms in works_ms:
            missed.append(self.rate.wait())
            begun.append((self.clock.now_ns() - START_NS) / MS)
            self.clock.advance_ns(round(work_ms * MS))
        return begun, missed


def test_the_time_that_work_and_late_sleep_take_does_not_add_up():
    begun, missed = LateLoop(overslept_ms=0.3).run([7.0, 31.0] * 500)
    assert begun[-1] == pytest.approx(999 * PERIOD_MS + 0.3)
    assert sum(missed) == 0


def test_a_period_with_a_fraction_of_a_nanosecond_does_not_drift():
    begun, _ = LateLoop(period_s=1 / 30).run([1.0] * 3001)
    assert begun[-1] == pytest.approx(100_000.0, abs=1e-3)


@pytest.mark.parametrize(
    ("work_ms", "begins_ms", "missed"),
    [
        (50, [0, 50, 100, 150], [0, 0, 0, 0]),
        (52, [0, 52, 100, 150], [0, 1, 0, 0]),
        (75, [0, 75, 100, 150], [0, 1, 0, 0]),
        (76, [0, 76, 150, 200], [0, 1, 0, 0]),
        (120, [0, 120, 150, 200], [0, 2, 0, 0]),
        (510, [0, 510, 550, 600], [0, 10, 0, 0]),
    ],
)
def test_a_missed_period_is_reported_and_not_made_up_for(work_ms, begins_ms, missed):
    loop = LateLoop()
    assert loop.run([work_ms, 1, 1, 1]) == (begins_ms, missed)
    assert loop.rate.missed == sum(missed)


@given(st.lists(st.floats(0.0, 400.0), min_size=2, max_size=40))
def test_steps_are_at_least_half_a_period_apart_and_on_the_grid_unless_late(works_ms):
    begun, missed = LateLoop().run(works_ms)
    for before, now, work_ms, late in zip(begun, begun[1:], works_ms, missed[1:], strict=False):
        assert now - before >= PERIOD_MS / 2 - 1e-3
        on_grid = abs(now / PERIOD_MS - round(now / PERIOD_MS)) < 1e-3
        assert on_grid or (late and now == pytest.approx(before + work_ms, abs=1e-3))


@pytest.mark.parametrize("period_s", [0, -1, float("nan"), float("inf"), 3601, "0.05", None])
def test_an_invalid_period_is_rejected(period_s):
    with pytest.raises(InvalidArgument, match="period_s: must be above 0 and at most 3600 s, got"):
        RateKeeper(period_s)
