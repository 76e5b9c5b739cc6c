"""The frames of a session in flight, their turns at the decoder, and the robot's pending events.

- While other sessions are active, frames get their turns at the declared rate plus 5 %, with a burst of three. A
  session that is the only active one does not wait. Frames before their turn go to the worker, which runs them in gaps
  (scheduler/turns.py), as long as handling them takes little processor time from others (capacity.EarlyHandling);
  otherwise they wait here. A frame whose turn would come too late for its age limit is rejected, and the turn goes to
  the next frame: waiting by itself never makes a robot hold.
- A frame above the permitted rate is used if no newer one arrives before its turn; otherwise it is rejected with
  RESOURCE_EXHAUSTED instead of superseded. Only a flood of such frames ends the stream (rates.py).
"""

from __future__ import annotations

from dataclasses import replace

from edgeflow.ipc.framing import Payloads
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.answers import SessionAnswers
from edgeflow.service.sessions.frames import (
    ActionEvent,
    Event,
    NoticeEvent,
    PendingAnswer,
    ReceiptEvent,
    SessionFrame,
    StatusEvent,
)
from edgeflow.service.sessions.rates import SessionRates
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Disposition

MOST_NOTES = 256


class Outbox:
    """Statuses and notices in order, the newest receipt, and at most one HOLD or STOP.

    receipts: the robot wants to know which frames have arrived. epoch: of notices and of HOLD.
    """

    def __init__(self, receipts: bool = False) -> None:
        self.epoch = 1
        self._notes: list[Event] = []
        self._receipts = receipts
        self._received = 0  # the newest frame to confirm; 0 = none
        self.safe: ActionEvent | None = None

    def __bool__(self) -> bool:
        return bool(self._notes) or self._received > 0 or self.safe is not None

    @property
    def is_full(self) -> bool:
        """True if more events wait than for a robot that reads its answers; its session ends."""
        return len(self._notes) > MOST_NOTES

    def note(self, event: StatusEvent | NoticeEvent) -> None:
        """Add an event; consecutive frames superseded for the same reason share one status with a range."""
        last = self._notes[-1] if self._notes else None
        if isinstance(last, StatusEvent) and isinstance(event, StatusEvent) and _joins(last, event):
            self._notes[-1] = replace(last, last_seq=event.seq)
        else:
            self._notes.append(event)

    def notice(self, kind: str, text: str = "", code: str = "", deadline_ms: int = 0) -> None:
        """Add a notice about the whole session."""
        self.note(NoticeEvent(kind, self.epoch, code, text, deadline_ms))

    def received(self, seq: int) -> None:
        """Confirm a frame that has arrived."""
        if self._receipts:
            self._received = seq

    def take(self) -> list[Event]:
        """Remove and return everything, a receipt first and the command last."""
        events: list[Event] = [ReceiptEvent(self._received)] if self._received else []
        events += self._notes
        if self.safe is not None:
            events.append(self.safe)
        self._notes, self._received, self.safe = [], 0, None
        return events


def _joins(last: StatusEvent, event: StatusEvent) -> bool:
    return (
        last.disposition is Disposition.SUPERSEDED
        and (event.disposition, event.reason, event.text) == (last.disposition, last.reason, last.text)
        and last.seq + last.frames == event.seq
    )


class FramesInFlight:
    """Frames in the states arrived → decoding → decoded → sent → ready; each outcome goes to the outbox once.

    excess: frames rejected since `take_excess` because they exceeded the permitted rate.
    ready: the action that waits for the stream. keeps_history: the worker gets frames that are not answered, too.
    """

    def __init__(self, outbox: Outbox, rates: SessionRates, answers: SessionAnswers, *, keeps_history: bool) -> None:
        self.excess = 0
        self.ready: PendingAnswer | None = None
        self._outbox = outbox
        self._rates = rates
        self._answers = answers
        self._keeps_history = keeps_history
        self._arrived: SessionFrame | None = None
        self._decoding: SessionFrame | None = None
        self._decoder_busy = False  # also while it decodes a frame that was dropped
        self._decoded: SessionFrame | None = None
        self._sent: dict[int, SessionFrame] = {}

    def __bool__(self) -> bool:
        return bool(self._arrived or self._decoding or self._decoded or self._sent or self.ready)

    @property
    def with_worker(self) -> bool:
        """True if frames are with the worker."""
        return bool(self._sent)

    def arrive(self, track: SessionFrame) -> None:
        """Put a frame before the decoder, superseding one that waits there."""
        self._outbox.received(track.frame.seq)
        self.supersede(self._arrived)
        self._arrived = track

    def turn_ns(self, now_ns: int) -> int | None:
        """The time at which the waiting frame gets its turn; None if no frame waits for one, or the decoder is busy."""
        track = self._arrived
        if track is None or self._decoder_busy or not (self._keeps_history or self._may_answer(track, now_ns)):
            return None
        return self._rates.turn_ns(now_ns)

    def _may_answer(self, track: SessionFrame, now_ns: int) -> bool:
        busy = any(not each.seen_only for each in self._sent.values())
        return self._answers.may_answer(track.frame, now_ns, busy=busy)

    def start_decoding(self, now_ns: int, *, at_once: bool) -> CheckedFrame | None:
        """The next frame to decode, if its turn has come or it need not wait for it; one that waited too long is
        rejected.
        """
        turn_ns, track = self.turn_ns(now_ns), self._arrived
        if turn_ns is None or track is None:
            return None
        if turn_ns > now_ns and not at_once:
            track.waited_for_turn = True
            return None
        self._arrived = None
        if track.waited_for_turn and now_ns - track.received_ns > self._answers.age_limit.turn_ns:
            # The turn is not taken from the bucket: the next frame gets it while it is still young.
            text = "its turn at the declared rate came too late for its age limit: the next frame has it"
            self.leave(track, Disposition.REJECTED, "RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED, text)
            return None
        self._rates.turns.take(now_ns)
        track.decoding_ns = now_ns
        self._decoding, self._decoder_busy = track, True
        return track.frame

    def finish_decoding(self) -> SessionFrame | None:
        """The frame leaving the decoder; None if it was dropped meanwhile."""
        track, self._decoding = self._decoding, None
        self._decoder_busy = False
        return track

    def decoded(self, track: SessionFrame, payload: Payloads, decode_ns: int) -> None:
        """Put a frame before the worker's socket, superseding one that waits there."""
        track.payload, track.decode_ns = payload, decode_ns
        self.supersede(self._decoded)
        self._decoded = track

    def start_sending(self, now_ns: int) -> SessionFrame | None:
        """The next frame to send, if one waits that may be answered or belongs to a history."""
        self._leave_unanswerable(now_ns)
        track = self._decoded
        if track is None:
            return None
        track.seen_only = not self._may_answer(track, now_ns)
        if track.seen_only and not self._keeps_history:
            return None
        self._decoded, track.sent_ns = None, now_ns
        self._sent[track.frame.seq] = track
        return track

    def _leave_unanswerable(self, now_ns: int) -> None:
        """Let go of frames that will never be answered: a robot that waits for their outcome would wait for ever."""
        if self._keeps_history:  # the worker gets them, and lets them go
            return
        for track in (self._decoded, self._arrived):
            if track is None or self._may_answer(track, now_ns) or not self._answers.never_answers(track.frame):
                continue
            self._decoded = None if track is self._decoded else self._decoded
            self._arrived = None if track is self._arrived else self._arrived
            self.supersede(track, "not answered: it was taken in motion, or before the newest answer arrived")

    def answered(self, seq: int, epoch: int) -> SessionFrame | None:
        """The frame of a worker's answer; None if it has left already, with its epoch or its worker."""
        track = self._sent.get(seq)
        if track is None or track.epoch != epoch:
            return None
        return self._sent.pop(seq)

    def act(self, ready: PendingAnswer) -> None:
        """Put an action before the stream, superseding one that waits there."""
        self.supersede(self.ready.track if self.ready else None)
        self.ready = ready

    def take_ready(self) -> PendingAnswer | None:
        """Remove and return the waiting action."""
        ready, self.ready = self.ready, None
        return ready

    def withdraw(self, disposition: Disposition, code: str, reason: str, text: str) -> None:
        """Withdraw the waiting action, if there is one."""
        if (ready := self.take_ready()) is not None:
            self.leave(ready.track, disposition, code, reason, text)

    def leave(self, track: SessionFrame, disposition: Disposition, code: str, reason: str, text: str) -> None:
        """Record the outcome of a frame that the caller has already removed, other than an answer."""
        self._answers.execution.left(track.frame.seq)
        self._outbox.note(
            StatusEvent(seq=track.frame.seq, disposition=disposition, code=code, reason=reason, text=text)
        )

    def supersede(self, track: SessionFrame | None, text: str = "superseded by a newer frame") -> None:
        """Record that a newer frame replaced this one, or that only a newer one can be answered."""
        if track is None:
            return
        if track.over_rate:
            self.excess += 1
            excess = "the frame rate exceeds the permitted one, and a newer frame arrived"
            self.leave(track, Disposition.REJECTED, "RESOURCE_EXHAUSTED", Reason.RATE_EXCEEDED, excess)
            return
        self.leave(track, Disposition.SUPERSEDED, "", Reason.SUPERSEDED, text)

    def take_excess(self) -> int:
        """Return the excess and reset it."""
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
