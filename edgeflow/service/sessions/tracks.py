"""Frames inside the service, the state of a session's ring in the worker, and the count of invalid outputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edgeflow.ipc.messages import Payload
from edgeflow.service.sessions.events import ActionEvent, Event, StatusEvent
from edgeflow.service.sessions.requests import CheckedFrame
from edgeflow.types import Command, Disposition, Speculation, StageTimings

INVALID_IN_A_ROW = 3  # consecutive invalid outputs that put a session in fault


@dataclass(slots=True, kw_only=True)
class Track:
    """A frame inside the service, with its times. speculation: of the session when the frame went to the worker."""

    frame: CheckedFrame
    epoch: int
    received_ns: int
    over_rate: bool
    waited_for_turn: bool = False
    payload: Payload = b""
    decode_ns: int = 0
    sent_ns: int = 0
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """An action not handed out yet. settled: as in FrameResult."""

    track: Track
    values: tuple[float, ...]
    token_ids: tuple[int, ...]
    timings: StageTimings
    settled: int

    def events(self, now_ns: int, delay_ns: int, valid_for_ms: int, max_age_ms: int) -> list[Event]:
        """The events of handing it out now. delay_ns: transport delay in excess of the session's quickest frame."""
        frame = self.track.frame
        server_ns = now_ns - self.track.received_ns
        speculation = self.track.speculation
        action = ActionEvent(
            epoch=self.track.epoch,
            command=Command.ACT,
            reason="",
            valid_for_ms=valid_for_ms,
            seq=frame.seq,
            stamp_ns=frame.stamp_ns,
            values=self.values,
            token_ids=self.token_ids,
            timings=self.timings,
            server_ns=server_ns,
            age_ns=server_ns + delay_ns,
            max_age_ms=max_age_ms,
            settled=self.settled,
            tolerance_bins=speculation.tolerance_bins if speculation else 0,
            max_passes=speculation.most_passes(len(self.token_ids)) if speculation else 0,
        )
        return [action, StatusEvent(seq=frame.seq, disposition=Disposition.ACTED)]


class Ring(Enum):
    """The state of a session's ring, its KV slots in the worker."""

    HELD = "held"
    FREED = "freed"  # given back in a silence; requested again with the next frame
    WANTED = "wanted"  # a frame waits for it
    ASKED = "asked"  # OpenSession is on its way
    LOST = "lost"  # lost with its worker; the plane requests one from the next worker


class OutputGuard:
    """Counts invalid outputs; INVALID_IN_A_ROW of them in a row are a fault, which only `rearm` ends."""

    def __init__(self) -> None:
        self.fault = False
        self._in_a_row = 0

    def passed(self) -> None:
        """Count a valid output."""
        self._in_a_row = 0

    def refused(self) -> bool:
        """Count an invalid output; True if it causes a fault."""
        self._in_a_row += 1
        self.fault = self._in_a_row >= INVALID_IN_A_ROW
        return self.fault

    def rearm(self) -> bool:
        """Clear the fault and the count; True if there was a fault."""
        was, self.fault, self._in_a_row = self.fault, False, 0
        return was
