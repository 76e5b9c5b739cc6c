"""How many frames are on the way at a time."""

from __future__ import annotations

import pytest

from edgeflow_client.connection.outgoing import MOST_UNCONFIRMED, FrameWindow


def test_an_open_window_has_no_limit_until_frames_are_confirmed():
    window = FrameWindow()
    for seq in range(1, 100):
        assert window.admits()
        window.sent(seq, 0)


class SimulatedLink:
    """A link in simulated time: frames leave one after another, and each takes a while to arrive and be confirmed."""

    def __init__(self, frame_ms: float, delay_ms: float) -> None:
        self._frame_ns, self._delay_ns = frame_ms * 1e6, delay_ms * 1e6
        self._free_ns = 0.0

    def confirmed_ns(self, now_ns: float) -> float:
        self._free_ns = max(self._free_ns, now_ns) + self._frame_ns
        return self._free_ns + self._delay_ns


def run(link: SimulatedLink, period_ms: float, frames: int) -> tuple[float, int]:
    """Send the newest frame whenever the window admits one; returns the share of the frames that were sent in the last
    half, and the most that were unconfirmed then.
    """
    window, on_the_way = FrameWindow(), []
    window.limit()
    sent = most = 0
    for tick in range(frames * 10):
        now_ns = tick * period_ms * 1e5
        while on_the_way and on_the_way[0][1] <= now_ns:
            seq, confirmed_ns = on_the_way.pop(0)
            window.confirmed(seq, round(confirmed_ns))
        if tick % 10 == 0 and window.admits():
            window.sent(tick + 1, round(now_ns))
            on_the_way.append((tick + 1, link.confirmed_ns(now_ns)))
            sent += tick > frames * 5
        most = max(most, len(on_the_way)) if tick > frames * 5 else 0
    return sent / (frames / 2 - 1), most


@pytest.mark.parametrize(
    ("frame_ms", "delay_ms", "rate", "most"),
    [(0.1, 0.2, 0.99, 1), (5, 40, 0.99, 2), (5, 200, 0.99, 6), (60, 40, 0.75, 4), (240, 20, 0.15, 2)],
    ids=["loopback", "wlan", "far", "nearly full", "narrow"],
)
def test_a_window_is_as_large_as_the_link_needs_and_no_queue_builds_up(frame_ms, delay_ms, rate, most):
    """The narrow links could carry 0.83 and 0.21 of the frames."""
    sent, unconfirmed = run(SimulatedLink(frame_ms, delay_ms), 50, 2000)
    assert sent >= rate
    assert 1 <= unconfirmed <= min(most, MOST_UNCONFIRMED)
