"""Whatever happens in whatever order: every frame gets one disposition, and no action is given that must not be.

`--hypothesis-profile=nightly` runs many more examples.
"""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgeflow.contract import Chunk
from edgeflow.ipc.messages import FrameDropped, FrameResult, SubmitFrame
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.frames import ActionEvent, End, Event, StatusEvent
from edgeflow.service.sessions.orders import OperatorHold
from edgeflow.service.sessions.rates import SessionRules
from edgeflow.service.sessions.session import Session
from edgeflow_client.errors import REQUEST_ERRORS, FailedPrecondition, InvalidArgument, RequestError, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, Command, Disposition, ImageFormat
from tests.service.scripted import SCHEMA

MS = 1_000_000
RULES = SessionRules(
    action_ttl_ms=250,
    longest_ttl_ms=500,
    silent_hold_ns=300 * MS,
    silent_free_ns=1_000 * MS,
    silent_end_ns=30_000 * MS,
    rate_hz=60.0,
    rate_factor=2.0,
    rejected_frames=8,
    session_age_ns=10**15,
)
REQUEST = OpenRequest(
    cameras=(CameraSpec("a", 1, 1, ImageFormat.RGB8),),
    instruction="first",
    control_period_ns=100 * MS,
    max_action_age_ns=1_500 * MS,
    mode=None,
    unnorm_key="",
)
LEFT = {
    "superseded": (Disposition.SUPERSEDED, Reason.SUPERSEDED),
    "overtaken": (Disposition.SUPERSEDED, Reason.OVERTAKEN),
    "dropped": (Disposition.DROPPED, Reason.EPOCH_CHANGED),
}


class SessionMachine(RuleBasedStateMachine):
    """The robot, the decoder, the worker and time, each doing anything at any moment."""

    @initialize()
    def open(self) -> None:
        self.now = 0
        self.session = Session(1, REQUEST, SCHEMA, RULES, 0)
        self.offered: Counter[int] = Counter()
        self.disposed: Counter[int] = Counter()
        self.acted: list[int] = []
        self.next_seq = 1
        self.decoding: list[CheckedFrame] = []
        self.submitted: list[SubmitFrame] = []
        self.answered: list[FrameResult | FrameDropped] = []
        self.worker_up = True
        self.stopped = False  # told to stop: nothing moves until the robot re-arms
        self.told_last = False  # the end was told: nothing comes after it

    @property
    def alive(self) -> bool:
        return self.session.ended is None

    @precondition(lambda self: self.alive)
    @rule(skip=st.integers(0, 2), instruction=st.sampled_from([None, None, "first", "second"]), bad=st.booleans())
    def frame(self, skip: int, instruction: str | None, bad: bool) -> None:
        seq = self.next_seq + skip
        self.next_seq = seq + 1
        self.offered[seq] += 1
        self.session.admit(seq, self.now, self.now)
        if bad:
            self.session.reject(seq, InvalidArgument("bad"), self.now)
        else:
            frame = CheckedFrame(seq=seq, stamp_ns=self.now, images=(b"abc",), instruction=instruction)
            self.session.offer(frame, self.now)
            assert not (self.session.holds.operator and self.session._frames), "held: nothing is in flight"

    @precondition(lambda self: self.alive and self.next_seq > 1)
    @rule(back=st.integers(1, 5))
    def old_frame(self, back: int) -> None:
        seq = max(self.next_seq - back, 0)
        self.offered[seq] += 1
        try:
            self.session.admit(seq, self.now, self.now)
        except RequestError as error:
            self.session.reject(seq, error, self.now)
        else:
            raise AssertionError(f"{seq} came twice")

    @rule(alone=st.booleans())
    def start_decoding(self, alone: bool) -> None:
        frame = self.session.start_decoding(self.now, alone=alone)
        if frame is not None:
            self.decoding.append(frame)
        assert len(self.decoding) <= 1

    @precondition(lambda self: self.decoding)
    @rule(good=st.booleans())
    def finish_decoding(self, good: bool) -> None:
        self.decoding.pop()
        if good:
            self.session.decoded(b"rgb", 5)
        else:
            self.session.decode_failed(InvalidArgument("broken"), self.now)

    @rule()
    def send(self) -> None:
        frame = self.session.start_sending(self.now)
        if frame is not None:
            assert self.worker_up and frame.epoch == self.session.epoch
            assert frame.instruction == self.session.instruction
            self.submitted.append(frame)

    @precondition(lambda self: self.submitted)
    @rule(index=st.integers(0, 3), what=st.sampled_from(["act", "act", "nan", "limit", *LEFT]))
    def answer(self, index: int, what: str) -> None:
        frame = self.submitted.pop(min(index, len(self.submitted) - 1))
        if what in LEFT:
            disposition, reason = LEFT[what]
            self.tell(
                FrameDropped(
                    session=1,
                    epoch=frame.epoch,
                    seq=frame.seq,
                    disposition=disposition.value,
                    code="ABORTED",
                    reason=reason,
                    text="",
                )
            )
            return
        values = {"act": [0.0, 0.0, 0.5], "nan": [math.nan, 0.0, 0.0], "limit": [0.0, 7.0, 0.0]}[what]
        self.tell(
            FrameResult(
                session=1,
                epoch=frame.epoch,
                seq=frame.seq,
                chunk=Chunk(tuple(values)),
                token_ids=[1, 2, 3],
                valid=True,
                queue_ns=1,
                inference_ns=1,
                passes=3,
                settled=3,
            )
        )

    @precondition(lambda self: self.answered)
    @rule(index=st.integers(0, 3))
    def answer_again(self, index: int) -> None:
        """A worker that repeats itself changes nothing."""
        self.tell(self.answered[-1 - min(index, len(self.answered) - 1)])

    def tell(self, message: FrameResult | FrameDropped) -> None:
        self.answered.append(message)
        if isinstance(message, FrameResult):
            self.session.result(message)
        else:
            self.session.dropped(message)

    @precondition(lambda self: self.worker_up)
    @rule()
    def invalid_answers_in_a_row(self) -> None:
        """What puts a session in fault."""
        for _ in range(4):
            if self.alive:
                self.frame(0, None, False)
            self.start_decoding(True)
            if self.decoding:
                self.finish_decoding(True)
            self.send()
            if self.submitted:
                self.answer(len(self.submitted), "nan")

    @precondition(lambda self: self.alive)
    @rule(frames=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def flow(self, frames: list[int]) -> None:
        """Good frames, each getting some steps far: the way most frames go."""
        for steps in frames:
            if self.alive:
                self.frame(0, None, False)
            if steps > 1:
                self.start_decoding(True)
            if steps > 1 and self.decoding:
                self.finish_decoding(True)
            if steps > 2:
                self.send()
            if steps > 3 and self.submitted:
                self.answer(0, "act")

    @precondition(lambda self: self.alive)
    @rule(instruction=st.sampled_from(["", "first", "third"]))
    def reset(self, instruction: str) -> None:
        epoch = self.session.epoch
        self.session.reset(instruction)
        assert self.session.epoch == epoch + 1
        self.stopped = False

    @precondition(lambda self: self.alive)
    @rule(times=st.integers(1, 12))
    def request_resets(self, times: int) -> None:
        """The robot asks for new episodes, perhaps too often."""
        epoch = self.session.epoch
        for _ in range(times):
            self.session.request_reset("", self.now)
        assert epoch <= self.session.epoch <= epoch + times
        self.stopped = self.stopped and self.session.epoch == epoch

    @precondition(lambda self: self.alive)
    @rule(text=st.sampled_from(["", "door open"]))
    def hold(self, text: str) -> None:
        """An operator holds the robot."""
        self.session.holds.hold_by(OperatorHold(text=text, by="", since_ms=0))
        assert not self.session._frames

    @precondition(lambda self: self.alive and self.session.holds.operator is not None)
    @rule()
    def resume(self) -> None:
        self.session.holds.resume()

    @precondition(lambda self: self.alive)
    @rule(text=st.sampled_from(["first", "second", "fourth"]))
    def instruct(self, text: str) -> None:
        """An operator gives an instruction, which ends no fault."""
        epoch, fault = self.session.epoch, self.session.answers.invalid.fault
        try:
            self.session.instruct(text)
        except FailedPrecondition:
            assert fault and self.session.epoch == epoch
        else:
            assert not fault and self.session.epoch == epoch + 1 and self.session.instruction == text

    @precondition(lambda self: self.worker_up and self.session.ring_wanted)
    @rule()
    def wake(self) -> None:
        """The ring that was given back in a silence is asked for and opened again."""
        self.session.commands.clear()
        self.session.ring_asked()
        self.session.worker_ready()

    @precondition(lambda self: self.session.ring_wanted)
    @rule()
    def find_no_place(self) -> None:
        """Another session uses the capacity now."""
        self.session.stay_parked(ResourceExhausted("taken", reason="SESSIONS_TAKEN"))
        assert self.session.parked and not self.session.ring_wanted and self.session.start_sending(self.now) is None

    @precondition(lambda self: self.worker_up)
    @rule()
    def lose_worker(self) -> None:
        self.worker_up = False
        self.submitted.clear()
        self.session.worker_lost()

    @precondition(lambda self: not self.worker_up)
    @rule()
    def new_worker(self) -> None:
        self.worker_up = True
        self.session.worker_back() if self.session.parked else self.session.worker_ready()

    @rule(milliseconds=st.sampled_from([0, 1, 20, 400, 2_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds * MS
        self.session.tick(self.now)

    @rule()
    def take(self) -> None:
        epoch = self.session.epoch
        told_before = self.told_last
        for event in self.session.take(self.now):
            assert not told_before, f"after the end: {event}"
            self.count(event)
            if isinstance(event, ActionEvent):
                self.act(event, epoch)
        self.told_last = self.session.ended is not None and not self.session.has_events

    def act(self, event: ActionEvent, epoch: int) -> None:
        if event.command is not Command.ACT:
            assert not event.values and not event.seq and event.reason
            self.stopped = event.command is Command.STOP
            return
        assert event.epoch == epoch and not self.stopped and self.session.holds.operator is None
        assert all(math.isfinite(value) for value in event.values)
        assert event.server_ns <= 1_500 * MS and event.age_ns >= event.server_ns
        assert not self.acted or event.seq > self.acted[-1], "an older action after a newer one"
        self.acted.append(event.seq)

    @precondition(lambda self: self.alive and self.next_seq > 30)
    @rule(how=st.sampled_from(["drain", "end_input"]))
    def stop(self, how: str) -> None:
        self.session.drain(100) if how == "drain" else self.session.end_input()

    def count(self, event: Event) -> None:
        if isinstance(event, StatusEvent | ActionEvent):
            assert event.reason in {"", *(reason.value for reason in Reason), *REQUEST_ERRORS}
        if isinstance(event, StatusEvent):
            for seq in range(event.seq, event.seq + event.frames):
                self.disposed[seq] += 1
            if event.disposition is Disposition.ACTED:
                assert self.acted[-1:] == [event.seq]

    @invariant()
    def no_frame_is_disposed_twice(self) -> None:
        assert not self.disposed - self.offered

    @invariant()
    def few_frames_are_held(self) -> None:
        if hasattr(self, "session"):
            held = sum(self.offered.values()) - sum(self.disposed.values())
            told = sum(event.frames for event in self.session._outbox._notes if isinstance(event, StatusEvent))
            assert held - told <= len(self.submitted) + 4, "one arrived, decoding, decoded, ready"

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        self.session.end(End("OK", Reason.CLIENT_CLOSED))
        while self.session.has_events:
            for event in self.session.take(self.now):
                assert not (isinstance(event, ActionEvent) and event.command is Command.ACT)
                self.count(event)
        assert self.disposed == self.offered, self.offered - self.disposed


TestSession = SessionMachine.TestCase
TestSession.settings = settings(suppress_health_check=[HealthCheck.too_slow])
