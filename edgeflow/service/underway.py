"""The frames of a session that have not left: at most one in each place, but for those with the worker."""

from __future__ import annotations

from edgeflow.ipc.messages import Payload
from edgeflow.reasons import Reason
from edgeflow.service.events import StatusEvent
from edgeflow.service.outbox import Outbox
from edgeflow.service.requests import CheckedFrame
from edgeflow.service.tracks import Ready, Track
from edgeflow.types import Disposition


class UnderWay:
    """A frame goes arrived → decoding → decoded → sent → ready; how it left is noted in the outbox, once."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._arrived: Track | None = None
        self._decoding: Track | None = None
        self._decoder_busy = False  # also with a frame that has left
        self._decoded: Track | None = None
        self._sent: dict[int, Track] = {}
        self._ready: Ready | None = None

    def __bool__(self) -> bool:
        return bool(self._arrived or self._decoding or self._decoded or self._sent or self._ready)

    @property
    def ready(self) -> Ready | None:
        """The action that waits for the stream."""
        return self._ready

    def arrive(self, track: Track) -> None:
        """The newest waits for the decoder."""
        self.supersede(self._arrived)
        self._arrived = track

    def start_decoding(self) -> CheckedFrame | None:
        """The frame to decode now, if there is one and the decoder of this session is free."""
        if self._decoder_busy or self._arrived is None:
            return None
        self._decoding, self._arrived = self._arrived, None
        self._decoder_busy = True
        return self._decoding.frame

    def finish_decoding(self) -> Track | None:
        """The frame that was in the decoder; None when it has left since."""
        track, self._decoding = self._decoding, None
        self._decoder_busy = False
        return track

    def decoded(self, track: Track, payload: Payload, decode_ns: int) -> None:
        """The newest waits for the worker's socket."""
        track.payload, track.decode_ns = payload, decode_ns
        self.supersede(self._decoded)
        self._decoded = track

    def start_sending(self, now_ns: int) -> Track | None:
        """The frame to send now, if one waits."""
        track, self._decoded = self._decoded, None
        if track is not None:
            track.sent_ns = now_ns
            self._sent[track.frame.seq] = track
        return track

    def answered(self, seq: int, epoch: int) -> Track | None:
        """The frame that an answer of the worker is about; None when it left before, with its epoch or its worker."""
        track = self._sent.get(seq)
        if track is None or track.epoch != epoch:
            return None
        return self._sent.pop(seq)

    def act(self, ready: Ready) -> None:
        """The newest action waits for the stream."""
        self.supersede(self._ready.track if self._ready else None)
        self._ready = ready

    def take_ready(self) -> Ready | None:
        """The action that waits, which is the caller's now."""
        ready, self._ready = self._ready, None
        return ready

    def leave(self, track: Track, disposition: Disposition, code: str, reason: str, text: str) -> None:
        """It is held nowhere any more."""
        self._outbox.note(
            StatusEvent(seq=track.frame.seq, disposition=disposition, code=code, reason=reason, text=text)
        )

    def supersede(self, track: Track | None) -> None:
        """It leaves for a newer one."""
        if track is None:
            return
        if track.over_rate:
            text = "the frame rate exceeds the permitted one, and a newer frame arrived"
            self.leave(track, Disposition.REJECTED, "RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED, text)
            return
        self.leave(track, Disposition.SUPERSEDED, "", Reason.SUPERSEDED, "superseded by a newer frame")

    def drop_unsent(self, code: str, reason: str, text: str) -> None:
        """Those that the worker has not seen leave."""
        for track in (self._decoded, self._decoding, self._arrived):
            if track is not None:
                self.leave(track, Disposition.DROPPED, code, reason, text)
        self._arrived = self._decoding = self._decoded = None

    def drop_all(self, code: str, reason: str, text: str) -> None:
        """All leave."""
        ready = self.take_ready()
        for track in (ready.track if ready else None, *self._sent.values()):
            if track is not None:
                self.leave(track, Disposition.DROPPED, code, reason, text)
        self._sent.clear()
        self.drop_unsent(code, reason, text)
