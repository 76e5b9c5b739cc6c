"""One robot's session: a state machine without threads, sockets or a clock.

A frame moves through arrived → decoding → decoded → sent → ready, and leaves with exactly one disposition:

    arrived   waits for the decoder, and if it is costly for its turn at the declared rate; only the newest is kept
    decoding  in the decoder, one at a time
    decoded   waits for the worker's socket; only the newest is kept
    sent      with the worker
    ready     its action waits for the stream; only the newest is kept, and taking it makes the frame ACTED

Rules beyond the protocol:
- An instruction takes effect once its frame's header is accepted, even if the frame is then superseded or its pixels
  are broken. A different text starts a new epoch.
- An instruction with more tokens than a slot holds is reverted: the previous one applies again, in a new epoch.
- Frames have their turns at the declared rate, and gaps before (in_flight.py). A flood of frames ends the session.
- A change of instruction or episode above its rate, or with a frame above the permitted rate, has no effect.
- A robot that was silent for a second with no frame in flight, or sent nothing usable, is parked (frames.RingState).
- A robot that an operator holds gets HOLD, and its frames leave, until it is resumed (orders.py).
- Answers that are invalid, or would start a resting robot in mid-motion, are withheld (answers.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from edgeflow.contract import Speculation
from edgeflow.ipc.framing import Payloads
from edgeflow.ipc.messages import CloseSession, FrameDropped, FrameResult, ResetSession, SubmitFrame
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.answers import AgeLimit, FrameTimes, PolicyFacts, SessionAnswers
from edgeflow.service.sessions.frames import (
    INVALID_IN_A_ROW,
    End,
    Event,
    PendingAnswer,
    RingState,
    SessionFrame,
    StatusEvent,
)
from edgeflow.service.sessions.in_flight import FramesInFlight, Outbox
from edgeflow.service.sessions.orders import HELD_TEXT, GivenInstruction, SessionHolds
from edgeflow.service.sessions.rates import SessionRates, SessionRules, Silence, changes_too_often
from edgeflow.service.sessions.robot_clock import FrameOrder
from edgeflow_client.errors import FailedPrecondition, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema, Command, Disposition


class Session:
    """The state machine. Report what happens; then take events, `commands`, frames to decode and frames to send.

    schema: the schema of the policy's chunks. robot_schema: the schema of the robot's answers: single actions, unless
    it executes chunks. speculation: how the drafts of the next frame are verified, set by the runner; None = no drafts.
    """

    def __init__(
        self,
        number: int,
        request: OpenRequest,
        schema: ActionSchema,
        rules: SessionRules,
        now_ns: int,
        policy: PolicyFacts | None = None,
        times: FrameTimes | None = None,
    ) -> None:
        self.number = number
        self.request = request
        self.schema = schema
        self.robot_schema = schema if request.chunks else replace(schema, horizon=1, step_ms=0.0)
        self._given = GivenInstruction(request.instruction)
        self.ended: End | None = None
        self.speculation: Speculation | None = None
        self.commands: deque[ResetSession | CloseSession] = deque()
        self.age_limit = AgeLimit.of(request, schema, rules.action_ttl_ms, times)
        policy = policy or PolicyFacts.of(schema)
        self.answers = SessionAnswers(request, schema, self.age_limit, policy.facts, rules)
        self._order = FrameOrder()
        self.rates = SessionRates(rules, request.control_period_ns, now_ns)
        self._silence = Silence(rules, request.control_period_ns, now_ns, normal=bool(request.front))
        self._draining = self._input_ended = self._lost = self._stamps_slow = False
        self._ring = RingState.HELD
        self._outbox = Outbox(request.receipts)
        self._frames = FramesInFlight(self._outbox, self.rates, self.answers, keeps_history=policy.keeps_history)
        self.holds = SessionHolds(self._frames, self._outbox, self.answers)

    @property
    def epoch(self) -> int:
        """Counts instructions and episodes, from 1 on."""
        return self._outbox.epoch

    @property
    def instruction(self) -> str:
        """The instruction in force."""
        return self._given.text

    # Calls for the robot.

    def admit(self, seq: int, stamp_ns: int, now_ns: int, received_ns: int | None = None) -> None:
        """A frame arrived, whatever its contents; OutOfRange if it is out of order. received_ns: as in `offer`."""
        self._silence.heard(now_ns)
        self._order.admit(seq, stamp_ns, now_ns if received_ns is None else received_ns)
        if self._order.clock.slow and not self._stamps_slow:
            self._stamps_slow = True
            self._outbox.notice("stamps", "stamps do not advance in real time: delays on the way here are unknown")

    def reject(self, seq: int, error: RequestError, now_ns: int) -> None:
        """Report a rejected frame; too many of them end the session."""
        self._outbox.note(StatusEvent.rejected(seq, error))
        self._count_rejection(now_ns)

    def offer(self, frame: CheckedFrame, now_ns: int, received_ns: int | None = None) -> None:
        """Take an admitted frame with a valid header; only the newest waits for the decoder.

        received_ns: the time from which its age counts; None = now.
        """
        self._silence.broken()
        over_rate = not self.rates.permitted.take(now_ns)
        if (flood := self.rates.flood(self._frames.take_excess(), now_ns)) is not None:
            self.reject(frame.seq, flood, now_ns)
            self.end(End(flood.code, Reason.RATE_EXCEEDED, flood.text))
            return
        if self.answers.invalid.fault:
            self._silence.used(now_ns)
            self._frames.excess += over_rate  # a flood ends even a session in fault
            text = f"{INVALID_IN_A_ROW} invalid outputs in a row: reset the session"
            self._outbox.note(StatusEvent.rejected(frame.seq, FailedPrecondition(text, reason=Reason.FAULT)))
            return
        if self._given.changes(frame.instruction):
            if over_rate or not self.rates.changes.take(now_ns):
                self.reject(frame.seq, changes_too_often("frame.instruction", over_rate), now_ns)
                return
            self.reset(frame.instruction or "")
        track = SessionFrame(frame=frame, epoch=self.epoch, received_ns=received_ns or now_ns, over_rate=over_rate)
        if self._draining or self._input_ended:
            self._frames.leave(track, Disposition.DROPPED, "UNAVAILABLE", Reason.DRAINING, "the service is stopping")
        elif self.holds.operator is not None:
            self._silence.used(now_ns)  # it is not decoded, so that nothing else shows that the robot is there
            self._frames.leave(track, Disposition.DROPPED, "ABORTED", Reason.OPERATOR_HOLD, HELD_TEXT)
        elif self._ring is RingState.LOST:
            text = "the worker is restarting"
            self._frames.leave(track, Disposition.DROPPED, "UNAVAILABLE", Reason.WORKER_RESTARTING, text)
        else:
            self._frames.arrive(track)
            if self._ring is RingState.FREED:
                self._ring = RingState.WANTED

    def request_reset(self, instruction: str, now_ns: int) -> None:
        """The robot requests a new epoch: `reset`, or reject the request if it comes too often."""
        if self.rates.changes.take(now_ns):
            self._order.begin_stamps()
            self.reset(instruction)
        else:
            self.reject_message(changes_too_often("reset", False), now_ns)

    def reset(self, instruction: str = "", *, by_operator: bool = False) -> None:
        """Start a new epoch: all frames in flight leave and none of their actions is sent. Ends a fault."""
        if self.answers.invalid.rearm():
            self._outbox.safe = None  # a STOP that was not sent yet would stop the new episode
        self._given.give(instruction, by_operator=by_operator)
        self._outbox.epoch += 1
        self.answers.halt(Reason.EPOCH_CHANGED)
        text = "the instruction or episode changed while this frame was in flight"
        self._frames.drop_all("ABORTED", Reason.EPOCH_CHANGED, text)
        if self._ring in (RingState.HELD, RingState.ASKED):
            self.commands.append(ResetSession(self.number, self.epoch))
        self._outbox.notice("epoch", "a new instruction or episode")
        if self.holds.operator is not None:
            self.hold(Reason.OPERATOR_HOLD)

    def reject_message(self, error: RequestError, now_ns: int) -> None:
        """Report a rejected message other than a frame; it counts like a rejected frame."""
        self._outbox.notice("rejected", error.text, error.code)
        self._count_rejection(now_ns)

    def end_input(self) -> None:
        """The robot sends nothing more; frames in flight still get their actions."""
        self._input_ended = True
        self._finish_if_idle()

    # Calls for the decoder.

    def start_decoding(self, now_ns: int, *, alone: bool, early: bool = False) -> CheckedFrame | None:
        """The next frame to decode, if one waits, this session's decoder is free and its turn has come.

        alone: no other session is active, so that none has to wait. early: it need not wait for its turn here, but with
        the worker.
        """
        frame = self._frames.start_decoding(now_ns, at_once=alone or early)
        self._finish_if_idle()
        return frame

    def turn_ns(self, now_ns: int) -> int | None:
        """The time at which the waiting frame gets its turn; None if no frame waits or the decoder is busy."""
        return self._frames.turn_ns(now_ns)

    def decoded(self, payload: Payloads, decode_ns: int) -> None:
        """The frame in the decoder is decoded to RGB and waits for the worker's socket."""
        track = self._frames.finish_decoding()
        if track is not None:
            self._silence.used(track.received_ns)
            self._frames.decoded(track, payload, decode_ns)

    def decode_failed(self, error: RequestError, now_ns: int) -> None:
        """The frame in the decoder cannot be decoded. UNAVAILABLE is a failure of the service, not a rejection."""
        track = self._frames.finish_decoding()
        if track is not None and error.code == "UNAVAILABLE":
            self._frames.leave(track, Disposition.DROPPED, error.code, error.reason, error.text)
        elif track is not None:
            self.reject(track.frame.seq, error, now_ns)
        self._finish_if_idle()

    # Calls for the worker.

    def start_sending(self, now_ns: int) -> SubmitFrame | None:
        """The next frame to send to the worker, if one waits."""
        track = self._frames.start_sending(now_ns) if self._ring is RingState.HELD else None
        if track is None:
            return None
        track.speculation = self.speculation
        if not track.seen_only:
            if (choice := self.answers.change()) is not None:
                self.notify("execution", f"{choice.execution.value}: {choice.reason}")
            track.execution = self.answers.begin(track.frame)
        return self.answers.submit(track, self.number, self.request, self.instruction, now_ns)

    def result(self, message: FrameResult) -> None:
        """Take an action if it is finite, within the limits and from this epoch; otherwise HOLD."""
        if (track := self._frames.answered(message.seq, message.epoch)) is None:
            return
        self._given.prove()
        answer = self.answers.judge(track, message)
        if isinstance(answer, PendingAnswer):
            self._frames.act(answer)
            self._outbox.safe = None
        else:
            self._frames.leave(track, Disposition.DROPPED, answer.code, answer.reason, answer.text)
            if answer.invalid:
                self.hold(answer.reason)
            if answer.fault:
                text = f"{INVALID_IN_A_ROW} invalid outputs in a row"
                self._frames.drop_all("INTERNAL", Reason.FAULT, text)
                self._outbox.notice("fault", f"{text}: the robot must reset", "INTERNAL")
                self.hold(Reason.FAULT, Command.STOP)
        self._finish_if_idle()

    def dropped(self, message: FrameDropped) -> None:
        """The worker dropped a frame without an action."""
        if (track := self._frames.answered(message.seq, message.epoch)) is None:
            return
        if message.reason == Reason.SUPERSEDED:
            self._frames.supersede(track)
        else:
            self._frames.leave(track, Disposition(message.disposition), message.code, message.reason, message.text)
        if message.reason == Reason.ACTION_TOO_OLD:
            self.holds.count_late()
        if message.reason == Reason.INSTRUCTION_TOO_LONG and self._given.reverts:
            self._given.revert()  # the worker counts tokens, so that only it can tell
            self.reset()
        self._finish_if_idle()

    def worker_lost(self) -> None:
        """The worker is lost: HOLD until there is another. Nothing changes for an ended session."""
        if self.ended is not None:
            return
        self._ring, self._lost = RingState.FREED if self.parked else RingState.LOST, True
        self.commands.clear()  # they were for the lost worker
        text = "the worker process was lost and is being replaced"
        self._frames.drop_all("UNAVAILABLE", Reason.WORKER_LOST, text)
        self._outbox.notice("worker_lost", text, "UNAVAILABLE")
        self.hold(Reason.WORKER_LOST)
        self._finish_if_idle()

    @property
    def ring_wanted(self) -> bool:
        """True while a frame waits for a ring that was released."""
        return self._ring is RingState.WANTED and self.ended is None

    @property
    def parked(self) -> bool:
        """True while the session has no ring because it released it after a silence."""
        return self._ring in (RingState.FREED, RingState.WANTED)

    def stay_parked(self, error: RequestError) -> None:
        """No ring is available for the waiting frame: drop the frame with the reason, and hold."""
        if self._ring is RingState.WANTED:
            self._ring = RingState.FREED
            self._frames.drop_unsent(error.code, error.reason, error.text)
            self.hold(error.reason)
            self._finish_if_idle()

    def ring_asked(self) -> None:
        """A ring was requested from the worker, for the present epoch."""
        self._ring = RingState.ASKED

    def worker_ready(self) -> None:
        """The worker opened the ring for the requested epoch."""
        self._ring = RingState.HELD
        self.worker_back()

    def worker_back(self) -> None:
        """A worker is available again."""
        if self._lost:
            self._lost = False
            self.notify("worker_ready")

    # Calls for the clock and the service.

    @property
    def active(self) -> bool:
        """True while frames of this robot are expected."""
        return self.ended is None and not self._silence.held and not self.parked

    def tick(self, now_ns: int) -> None:
        """Check for silence and for the maximum age."""
        if self.ended is not None:
            return
        if (end := self._silence.end(now_ns)) is not None:
            self.end(end)
        elif self._silence.hold_due(now_ns) and not self._input_ended:
            self._hold_silent()
        elif self._silence.can_park(now_ns) and self._ring is RingState.HELD and not self._frames:
            self._ring = RingState.FREED
            self.commands.append(CloseSession(self.number))
            self._hold_silent()

    def _hold_silent(self) -> None:
        if not self._input_ended and self._silence.hold():
            self.hold(Reason.INGRESS_SILENT)

    def hold(self, reason: str, command: Command = Command.HOLD) -> None:
        """Order the robot to stop moving; an action that was not taken yet is withdrawn. The STOP of a fault stays."""
        self.holds.order(reason, command)

    def instruct(self, text: str) -> None:
        """An operator gives an instruction: a new epoch. FailedPrecondition in a fault, which only the robot ends."""
        if self.answers.invalid.fault:
            raise FailedPrecondition("the session is in fault: the robot must reset first", reason=Reason.FAULT)
        self.reset(text, by_operator=True)

    def notify(self, kind: str, text: str = "") -> None:
        """Send the robot a notice."""
        if self.ended is None:
            self._outbox.notice(kind, text)

    def drain(self, deadline_ms: int) -> None:
        """The service stops: frames with the worker finish, others are dropped; then HOLD and the end."""
        if self.ended is not None:
            return
        self._draining = True
        self._outbox.notice("drain", "the service is stopping", "UNAVAILABLE", deadline_ms)
        self._frames.drop_unsent("UNAVAILABLE", Reason.DRAINING, "the service is stopping")
        self._finish_if_idle()

    def end(self, end: End) -> None:
        """End the session: every frame in flight leaves. Only the first end counts."""
        if self.ended is None:
            code = "CANCELLED" if end.code == "OK" else end.code
            self._frames.drop_all(code, Reason.SESSION_CLOSED, "the session ended")
            self.holds.operator = None  # the last HOLD says why the session ends
            if end.code != "OK":
                self.hold(end.reason, end.command)
            self.ended = end

    # Events for the robot.

    @property
    def outbox_full(self) -> bool:
        """True if the robot reads its answers too slowly."""
        return self._outbox.is_full

    @property
    def has_events(self) -> bool:
        return bool(self._outbox) or self._frames.ready is not None

    def take(self, now_ns: int) -> list[Event]:
        """All pending events, in order; the newest action comes last, followed by its ACTED."""
        delay_ns = 0
        if (ready := self._frames.ready) is not None:
            delay_ns = self._order.clock.delay_ns(ready.track.frame.stamp_ns, ready.track.received_ns)
            self.holds.withdraw_if_old(ready, now_ns, delay_ns)
        events = self._outbox.take()
        if (ready := self._frames.take_ready()) is not None:
            self.answers.handed_out(ready, now_ns)
            events += self.answers.events(ready, now_ns, delay_ns)
        self._finish_if_idle()
        return events

    def _count_rejection(self, now_ns: int) -> None:
        if (end := self.rates.count_rejection(now_ns)) is not None:
            self.end(end)

    def _finish_if_idle(self) -> None:
        """While stopping: end the session once no frame is in flight."""
        if self._frames or self.ended is not None:
            return
        if self._draining:
            self.end(End("UNAVAILABLE", Reason.DRAINING, "the service is stopping"))
        elif self._input_ended:
            self.end(End("OK", Reason.CLIENT_CLOSED))
