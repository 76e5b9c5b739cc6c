"""Wrong stamps and clocks that jump keep a robot from acting for a second at most; old frames never pass for new ones.

The cases are those of a client that is not the SDK: one frame with a wrong stamp among right ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent, NoticeEvent
from edgeflow.service.sessions.session import Session
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import OutOfRange
from tests.cases import pairs_by_day
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_session import answer, decoded, stamped
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

SECOND = 1000 * MS
HOUR = 3600 * SECOND
WALL = 1_790_000_000 * SECOND
AHEAD = [900 * MS, 2 * SECOND, HOUR, WALL, 2**63, 2**64 - 1 - 100 * SECOND]
TOOK_MS = 20
JUMPS = st.one_of(
    st.integers(-100, 100).map(lambda hundredths: hundredths * SECOND // 100),
    st.integers(-100, 100).map(lambda fifths: fifths * SECOND // 5),
    st.sampled_from(AHEAD),
    st.integers(0, AHEAD[-1]),
)


@dataclass
class SteadyCamera:
    """A robot that takes pictures at a steady rate, on the session's clock plus `offset_ns`."""

    period_ms: int
    offset_ns: int = 0
    seq: int = 0
    clock: ManualClock = field(default_factory=lambda: ManualClock(10 * SECOND))
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.due_ns = self.clock.now_ns()
        self.session = Session(1, replace(REQUEST, max_action_age_ns=None), SCHEMA, RULES, self.due_ns)
        self.session.age_limit.forecast_ns = 50 * MS

    @property
    def stamp_ns(self) -> int:
        """Of the picture taken last."""
        return self.due_ns + self.offset_ns

    def sends(self, stamp_ns: int) -> bool:
        """Send a frame now; True if it is acted on."""
        self.seq += 1
        try:
            return stamped(self.session, self.seq, stamp_ns, self.clock.now_ns(), TOOK_MS)
        except OutOfRange:
            return False

    def step(self, jitter_ms: int = 0, wrong_ns: int = 0) -> bool:
        """Take the next picture, and send it `jitter_ms` later; True if it is acted on."""
        self.due_ns += self.period_ms * MS
        self.clock.advance_to_ns(self.due_ns + jitter_ms * MS)
        return self.sends(max(self.stamp_ns + wrong_ns, 0))

    def acts(self, frames: int) -> bool:
        """True if all the next frames are acted on."""
        return [self.step() for _ in range(frames)] == [True] * frames

    def resets(self) -> None:
        self.session.request_reset("", self.clock.now_ns())

    def until_it_acts_ms(self, jitters_ms: list[int] | None = None) -> int:
        """Send frames until one is acted on; how long that took."""
        begun_ns = self.due_ns
        for jitter_ms in itertools.cycle(jitters_ms or [0]):
            if self.step(jitter_ms) or self.due_ns - begun_ns > 20 * SECOND:
                break
        return (self.clock.now_ns() - begun_ns) // MS


@pytest.mark.parametrize(("period_ms", "ahead_ns", "resets"), pairs_by_day([50, 100], AHEAD, [False, True]))
def test_after_one_wrong_stamp_a_robot_acts_within_a_second(period_ms: int, ahead_ns: int, resets: bool):
    for place in range(12):
        camera = SteadyCamera(period_ms)
        assert camera.acts(place)
        camera.step(wrong_ns=ahead_ns)
        if resets:
            camera.resets()
        assert camera.until_it_acts_ms() <= 3 * period_ms
        assert camera.acts(40)


@given(
    period_ms=st.integers(17, 200),
    jitters=st.lists(st.integers(0, 20), min_size=5, max_size=12),
    place=st.one_of(st.integers(0, 5), st.integers(0, 80)),
    wrong_ns=JUMPS,
    resets=st.booleans(),
)
def test_any_wrong_stamp_costs_less_than_a_second(
    period_ms: int, jitters: list[int], place: int, wrong_ns: int, resets: bool
):
    camera = SteadyCamera(period_ms)
    jitters_ms = [min(jitter, period_ms // 5) for jitter in jitters]
    for jitter_ms in itertools.islice(itertools.cycle(jitters_ms), place):
        camera.step(jitter_ms)
    camera.step(wrong_ns=wrong_ns)
    if resets:
        camera.resets()
    assert camera.until_it_acts_ms(jitters_ms) < 1000
    assert False not in [camera.step(jitter_ms) for jitter_ms in jitters_ms]


@given(st.integers(17, 200), st.integers(0, 100), JUMPS)
def test_a_clock_that_is_set_stops_a_robot_for_less_than_a_second(period_ms: int, before: int, by_ns: int):
    """No stamp comes twice, to the nanosecond."""
    camera = SteadyCamera(period_ms, offset_ns=20 * SECOND)
    assert camera.acts(before)
    camera.offset_ns = min(camera.offset_ns + by_ns + 1, AHEAD[-1])
    assert camera.until_it_acts_ms() < 1000
    assert camera.acts(40)


def test_with_a_reset_a_simulator_s_time_may_begin_again():
    """It shows the very stamps that it showed before."""
    camera = SteadyCamera(50)
    assert camera.acts(100)
    camera.offset_ns -= 100 * 50 * MS
    assert not camera.acts(10)
    camera.resets()
    assert camera.until_it_acts_ms() == 150 and camera.acts(40)


@given(
    st.integers(17, 200),
    st.integers(5, 100),
    st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=12),
)
def test_a_frame_that_is_sent_again_is_never_acted_on(period_ms: int, before: int, again: list[tuple[int, bool]]):
    """Whether at once or a period later; and the newest frame acts after them."""
    camera = SteadyCamera(period_ms)
    assert camera.acts(before)
    newest_ns = camera.stamp_ns
    for back, waits in again:
        if waits:
            camera.due_ns += period_ms * MS
            camera.clock.advance_to_ns(camera.due_ns)
        assert not camera.sends(newest_ns - min(back, before - 1) * period_ms * MS)
    assert camera.step()


@given(st.integers(17, 100), st.integers(5, 60), st.integers(1, 60), st.integers(1, 99))
def test_old_frames_that_come_together_are_never_acted_on(period_ms: int, before: int, count: int, percent: int):
    """They were captured before the newest one, at the same pace, and none of them was sent before."""
    camera = SteadyCamera(period_ms)
    assert camera.acts(before)
    newest_ns = camera.stamp_ns
    for number in range(count, 0, -1):
        camera.clock.advance_ns(period_ms * MS // 100)
        assert not camera.sends(newest_ns - number * period_ms * MS + percent * period_ms * MS // 100)
    camera.due_ns = max(camera.due_ns, camera.clock.now_ns() - period_ms * MS)
    assert camera.step()


def test_a_robot_whose_stamp_is_always_zero_acts_and_is_notified_once():
    session = Session(1, replace(REQUEST, max_action_age_ns=None), SCHEMA, RULES, 0)
    events = []
    for seq in range(1, 100):
        now_ns = seq * 100 * MS
        session.admit(seq, 0, now_ns)
        session.offer(CheckedFrame(seq=seq, stamp_ns=0, images=(b"abc",)), now_ns)
        assert decoded(session, now_ns, alone=True) == seq
        frame = session.start_sending(now_ns)
        assert frame is not None
        answer(session, frame)
        events += session.take(now_ns)
    assert all(event.seq for event in events if isinstance(event, ActionEvent))
    assert [event.kind for event in events if isinstance(event, NoticeEvent)] == ["stamps"]
