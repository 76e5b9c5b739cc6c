"""The frames of a session in flight: at most one per stage, except those with the worker."""

from __future__ import annotations

from edgeflow.ipc.framing import Payloads
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.events import StatusEvent
from edgeflow.service.sessions.frames.outbox import Outbox
from edgeflow.service.sessions.frames.tracks import Ready, Track
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Disposition


class UnderWay:
    """Frames on their way arrived → decoding → decoded → sent → ready; each outcome goes to the outbox, once.

    excess: frames rejected because they came above the permitted rate, since `take_excess`.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.excess = 0
        self._outbox = outbox
        self._arrived: Track | None = None
        self._decoding: Track | None = None
        self._decoder_busy = False  # also while it decodes a frame that was dropped
        self._decoded: Track | None = None
        self._sent: dict[int, Track] = {}
        self._ready: Ready | None = None

    def __bool__(self) -> bool:
        return bool(self._arrived or self._decoding or self._decoded or self._sent or self._ready)

    @property
    def ready(self) -> Ready | None:
        """The action waiting for the stream."""
        return self._ready

    @property
    def with_worker(self) -> bool:
        """True if frames are with the worker."""
        return bool(self._sent)

    def arrive(self, track: Track) -> None:
        """Put a frame before the decoder, superseding one that waits there."""
        self.supersede(self._arrived)
        self._arrived = track

    @property
    def may_decode(self) -> bool:
        """True if a frame waits for the decoder and it is free."""
        return self._arrived is not None and not self._decoder_busy

    def wait_for_turn(self) -> None:
        """The frame before the decoder waits because its turn is yet to come."""
        if self._arrived is not None:
            self._arrived.waited_for_turn = True

    def waits_longer_than(self, most_ns: int, now_ns: int) -> bool:
        """True if the frame before the decoder waited so long for its turn."""
        track = self._arrived
        return track is not None and track.waited_for_turn and now_ns - track.received_ns > most_ns

    def turn_too_late(self) -> None:
        """Refuse the frame before the decoder; its turn is the next frame's."""
        track, self._arrived = self._arrived, None
        if track is not None:
            text = "its turn at the declared rate came too late for its age limit: the next frame has it"
            self.leave(track, Disposition.REJECTED, "RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED, text)

    def start_decoding(self) -> CheckedFrame | None:
        """The next frame to decode, if one waits and this session's decoder is free."""
        if self._decoder_busy or self._arrived is None:
            return None
        self._decoding, self._arrived = self._arrived, None
        self._decoder_busy = True
        return self._decoding.frame

    def finish_decoding(self) -> Track | None:
        """The frame leaving the decoder; None if it was dropped meanwhile."""
        track, self._decoding = self._decoding, None
        self._decoder_busy = False
        return track

    def decoded(self, track: Track, payload: Payloads, decode_ns: int) -> None:
        """Put a frame before the worker's socket, superseding one that waits there."""
        track.payload, track.decode_ns = payload, decode_ns
        self.supersede(self._decoded)
        self._decoded = track

    def start_sending(self, now_ns: int) -> Track | None:
        """The next frame to send, if one waits."""
        track, self._decoded = self._decoded, None
        if track is not None:
            track.sent_ns = now_ns
            self._sent[track.frame.seq] = track
        return track

    def answered(self, seq: int, epoch: int) -> Track | None:
        """The frame to which a worker's answer refers; None if it left before, with its epoch or its worker."""
        track = self._sent.get(seq)
        if track is None or track.epoch != epoch:
            return None
        return self._sent.pop(seq)

    def act(self, ready: Ready) -> None:
        """Put an action before the stream, superseding one that waits there."""
        self.supersede(self._ready.track if self._ready else None)
        self._ready = ready

    def take_ready(self) -> Ready | None:
        """Remove and return the waiting action."""
        ready, self._ready = self._ready, None
        return ready

    def leave(self, track: Track, disposition: Disposition, code: str, reason: str, text: str) -> None:
        """Note the outcome of a frame that the caller has already removed."""
        self._outbox.note(
            StatusEvent(seq=track.frame.seq, disposition=disposition, code=code, reason=reason, text=text)
        )

    def supersede(self, track: Track | None) -> None:
        """Note that a newer frame replaced this one."""
        if track is None:
            return
        if track.over_rate:
            self.excess += 1
            text = "the frame rate exceeds the permitted one, and a newer frame arrived"
            self.leave(track, Disposition.REJECTED, "RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED, text)
            return
        self.leave(track, Disposition.SUPERSEDED, "", Reason.SUPERSEDED, "superseded by a newer frame")

    def take_excess(self) -> int:
        """Return the excess, which begins anew."""
        excess, self.excess = self.excess, 0
        return excess

    def drop_unsent(self, code: str, reason: str, text: str) -> None:
        """Drop the frames not yet sent to the worker."""
        for track in (self._decoded, self._decoding, self._arrived):
            if track is not None:
                self.leave(track, Disposition.DROPPED, code, reason, text)
        self._arrived = self._decoding = self._decoded = None

    def drop_all(self, code: str, reason: str, text: str) -> None:
        """Drop all frames."""
        ready = self.take_ready()
        for track in (ready.track if ready else None, *self._sent.values()):
            if track is not None:
                self.leave(track, Disposition.DROPPED, code, reason, text)
        self._sent.clear()
        self.drop_unsent(code, reason, text)
