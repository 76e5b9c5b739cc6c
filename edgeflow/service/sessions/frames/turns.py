"""The turn of a robot's next frame at the decoder.

- Beside other active sessions, frames have their turn at the declared rate and 5 %, with a burst of three. A session
  alone does not wait. A frame whose turn would come too late for its age limit is refused then, and the turn is the
  next frame's: waiting alone never makes a robot hold.
- A frame above the permitted rate is used if no newer one arrives before its turn; otherwise it is refused with
  RESOURCE_EXHAUSTED instead of superseded. Only very many such frames end the stream (rates.py).
"""

from __future__ import annotations

from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames.underway import UnderWay
from edgeflow.service.sessions.gate import AgeLimit
from edgeflow.service.sessions.rates import Rates


class Turns:
    """Gives a session's frames to the decoder, one at a time, at the declared rate."""

    def __init__(self, frames: UnderWay, rates: Rates, age_limit: AgeLimit) -> None:
        self._frames = frames
        self._rates = rates
        self._age_limit = age_limit

    def start_decoding(self, now_ns: int, *, alone: bool) -> CheckedFrame | None:
        """As Session.start_decoding."""
        turn_ns = self.turn_ns(now_ns)
        if turn_ns is None:
            return None
        if turn_ns > now_ns and not alone:
            self._frames.wait_for_turn()
            return None
        if self._frames.waits_longer_than(self._patience_ns, now_ns):
            self._frames.turn_too_late()
            return None
        self._rates.take_turn(now_ns)
        return self._frames.start_decoding()

    def turn_ns(self, now_ns: int) -> int | None:
        """As Session.turn_ns."""
        return self._rates.turn_ns(now_ns) if self._frames.may_decode else None

    @property
    def _patience_ns(self) -> int:
        """How long a frame may wait for its turn: half of what its age limit leaves, the other half is for jitter."""
        return max(self._age_limit.spare_ns, 0) // 2
