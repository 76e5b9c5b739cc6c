"""Checks of the worker's answers: action limits, the age limit, and continuations after a HOLD.

- Three consecutive invalid outputs put the session in fault: the robot gets STOP, and every frame is rejected until it
  sends `Reset`. These rejections do not count towards ending the stream.
- An answer that continues a chunk from before a HOLD is withdrawn: it would start a resting robot in mid-motion. An
  answer that continues no chunk is sent.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_low

from edgeflow.contract import Pace, within_limits
from edgeflow.ipc.messages import FrameResult, SubmitFrame, WorkerReady
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow.scheduler.execution import FULL_RATE, AnswerExecution, ChosenExecution, ExecutionFacts, SessionExecution
from edgeflow.scheduler.forecast import AnswerForecast
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.frames import Event, InvalidOutputs, PendingAnswer, SentChunks, SessionFrame
from edgeflow.service.sessions.rates import SessionRules
from edgeflow_client.displacement import POSITION
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

MEASURED_NS = 2_000_000_000  # measured times count up to this, or up to a multiple of the forecast age
MEASURED_TIMES = 4
LATE_IN_A_ROW = 3
LONGEST_FORECAST_MS = 10_000  # of a validity that follows the answers: a robot's reports must not extend it for ever
_SERIAL = Pace()
IN_FLIGHT = 3  # times K: more than twice the frames in flight or waiting


def unheard_m(schema: ActionSchema, milliseconds: int, most_rows: int) -> float:
    """The farthest that the tool can move in a time at the limits of the schema, in metres; 0 = unknown.

    Rows that displace the tool may each move it so far, also the one in execution when the time begins; of a single
    action there is one row. most_rows: rows that are executed before the robot stands still.
    """
    moves = [index for index, name in enumerate(schema.names) if schema.relative[index] and name in POSITION]
    if any(schema.units[index] != "m" for index in moves):
        return 0.0
    far = [max(abs(schema.low[index]), abs(schema.high[index])) for index in moves]
    rows = 1 + math.ceil(milliseconds * 1e6 / schema.motion_ns) if schema.horizon > 1 else 1
    farthest = math.sqrt(sum(each * each for each in far)) * min(rows, most_rows)
    return farthest if math.isfinite(farthest) else 0.0


def validity_ms(ttl_ms: int, request: OpenRequest, schema: ActionSchema) -> int:
    """Time for which a robot may execute an answer, where nothing is forecast: ttl_ms, or until the last row of its
    chunk ends. The client of a front end executes rows until it asks again.
    """
    lasts_ms = math.ceil(schema.horizon * schema.step_ms)
    ttl_ms = min(ttl_ms, lasts_ms) if request.chunks and lasts_ms else ttl_ms
    return max(ttl_ms, int(schema.horizon * schema.step_ms)) if request.front else ttl_ms


class FrameTimes:
    """The typical time of a frame in the worker: the median of the last `most` frames, which one stall cannot move.

    most: more than twice the frames that a stall can catch in flight.
    """

    def __init__(self, most: int) -> None:
        self._last_ns = deque([0] * most, maxlen=most)
        self.typical_ns = 0

    def observe(self, took_ns: int) -> None:
        """Add the time of a frame."""
        self._last_ns.append(took_ns)
        self.typical_ns = median_low(self._last_ns)


class AgeLimit:
    """The maximum age of a frame when its action is executed.

    explicit_ns: the limit of the session or the configuration; None = the validity of an action plus the forecast age,
    or plus the time that frames take where that is longer, within bounds. reach_ns: time from the capture of a frame
    to the moment of its chunk's last row, from which that row's age counts. synchronous: the robot waits for each
    answer, and its chunk is valid until the next request.
    """

    def __init__(
        self,
        explicit_ns: int | None,
        validity_ns: int,
        times: FrameTimes,
        reach_ns: int = 0,
        *,
        synchronous: bool = False,
    ) -> None:
        self._synchronous = synchronous
        self.times = times
        self.forecast_ns = 0
        self._reach_ns = reach_ns
        self._explicit_ns = explicit_ns
        self._validity_ns = validity_ns

    @classmethod
    def of(cls, request: OpenRequest, schema: ActionSchema, ttl_ms: int, times: FrameTimes | None) -> AgeLimit:
        """The limit of a session. times: shared by all sessions of a single frame; None = the session's own."""
        times = FrameTimes(IN_FLIGHT * len(schema.names)) if times is None else times
        validity_ns = ttl_ms * 1_000_000
        if not request.front:
            return cls(request.max_action_age_ns, validity_ns, times, reach_ns=schema.reach_ns)
        return cls(request.max_action_age_ns, max(validity_ns, request.control_period_ns), times, synchronous=True)

    def valid_for(self, validity_ns: int) -> None:
        """Actions are valid so long from now on."""
        self._validity_ns = validity_ns

    @property
    def ns(self) -> int:
        """The present limit."""
        if self._explicit_ns is not None:
            return self._explicit_ns
        return self._validity_ns + self._expected_ns

    @property
    def oldest_ns(self) -> int:
        """The age of a frame after which no row of its answer is executed."""
        return self.ns + self._reach_ns

    @property
    def spare_ns(self) -> int:
        """The part of the limit that is left after the expected time of a frame."""
        return self.oldest_ns - self._expected_ns

    @property
    def turn_ns(self) -> int:
        """Time for which a frame may wait for its turn. Half of the spare time is kept for jitter, unless the robot
        waits for each answer.
        """
        return max(self.spare_ns, 0) // (1 if self._synchronous else 2)

    @property
    def _expected_ns(self) -> int:
        return max(self.forecast_ns, min(self.times.typical_ns, max(MEASURED_NS, MEASURED_TIMES * self.forecast_ns)))


@dataclass(frozen=True, slots=True)
class Withheld:
    """An answer that the robot does not get."""

    code: str
    reason: str
    text: str
    invalid: bool = False
    """The policy's output is invalid."""
    fault: bool = False
    """It was one invalid output too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """The facts of a policy that a session needs."""

    facts: ExecutionFacts
    """How its answers may be executed."""
    keeps_history: bool = False
    """It takes earlier observations, also those that are not answered."""

    @classmethod
    def of(cls, schema: ActionSchema, ready: WorkerReady | None = None, pace: Pace = _SERIAL) -> PolicyFacts:
        """The policy of a worker, for a session at a pace."""
        if ready is None:
            return cls(facts=ExecutionFacts.of(schema, 0, continues=False, timed=False))
        timed = ready.inputs.most_delay_ms > 0.0
        facts = ExecutionFacts.of(schema, ready.bridged_rows, continues=ready.continues, timed=timed)
        facts = facts.at(pace, ready.pass_times.packed_ns)
        return cls(facts=facts, keeps_history=ready.inputs.history > 1)


class SessionAnswers:
    """The answers of a session. sent: the chunks sent last; ages: the ages of their frames on arrival at the robot.

    schema: the schema of the policy's chunks. The robot executes rows by the clock, starting at the row that is due; a
    client of a front end starts at the first row, whenever the answer arrives.
    """

    def __init__(
        self,
        request: OpenRequest,
        schema: ActionSchema,
        age_limit: AgeLimit,
        facts: ExecutionFacts,
        rules: SessionRules,
    ) -> None:
        self.sent = SentChunks()
        self.ages = AnswerAges()
        self.invalid = InvalidOutputs()
        self.age_limit = age_limit
        self.gap_ns = request.control_period_ns  # the forecast time between two answers
        period_ns, longest_ns = request.control_period_ns, rules.longest_ttl_ms * 1_000_000
        self.execution = SessionExecution(request.execution, facts, period_ns=period_ns, longest_ns=longest_ns)
        self._schema = schema
        self._ttl_ms = validity_ms(rules.action_ttl_ms, request, schema)
        self._whole = request.chunks
        self._by_clock = not request.front
        self._late_in_a_row = 0

    def take_forecast(self, forecast: AnswerForecast) -> None:
        """Take the forecast for the session, which other sessions change."""
        first = not self.age_limit.forecast_ns
        self.age_limit.forecast_ns, self.gap_ns = forecast.age_ns, forecast.gap_ns
        if first:
            self.execution.begin(self.expected_delay_ns, self.gap_ns)

    @property
    def expected_delay_ns(self) -> int:
        """The age of the next frame when its answer arrives: measured, and at first at least the forecast age."""
        return self.ages.expected_ns(self.age_limit.forecast_ns)

    @property
    def valid_for_ms(self) -> int:
        """How long a robot may execute its answers, as forecast."""
        expected = self._expected
        return self._ttl_ms if expected is None else self._validity_ms(expected.valid_ns)

    @property
    def unheard_m(self) -> float:
        """The most that the tool may move within `valid_for_ms` at the limits of the schema, in metres; 0 = unknown."""
        rows, rate_percent = self._schema.horizon, FULL_RATE
        if (expected := self._expected) is not None:
            rows, rate_percent = expected.rows or rows, expected.rate_percent
        return unheard_m(self._schema, self.valid_for_ms * rate_percent // FULL_RATE, rows)

    @property
    def _expected(self) -> AnswerExecution | None:
        return self.execution.expected(self.expected_delay_ns, self.gap_ns)

    def may_answer(self, frame: CheckedFrame, now_ns: int, *, busy: bool) -> bool:
        """As in SessionExecution."""
        return self.execution.may_answer(
            resting=frame.resting, arrived=_newest_arrived(frame), now_ns=now_ns, busy=busy
        )

    def never_answers(self, frame: CheckedFrame) -> bool:
        """As in SessionExecution."""
        return self.execution.never_answers(resting=frame.resting, arrived=_newest_arrived(frame))

    def begin(self, frame: CheckedFrame) -> AnswerExecution | None:
        """A frame goes to the worker to be answered: how that answer will be executed."""
        delay_ns = self.expected_delay_ns
        how = self.execution.answer(frame.seq, resting=frame.resting, delay_ns=delay_ns, gap_ns=self.gap_ns)
        if how is not None:
            self.age_limit.valid_for(self._validity_ms(how.valid_ns) * 1_000_000)
        return how

    def submit(
        self, track: SessionFrame, number: int, request: OpenRequest, instruction: str, now_ns: int
    ) -> SubmitFrame:
        """The frame as the policy of session `number` receives it. The pixels move into the message."""
        frame, how, delay_ns = track.frame, track.execution, self.expected_delay_ns
        from_arrival = bool(request.front) or (how is not None and how.from_arrival)
        continues = request.chunks and not from_arrival and self.sent.may_continue(frame.playing)
        payload, track.payload = track.payload, b""
        return SubmitFrame(
            session=number,
            epoch=track.epoch,
            seq=frame.seq,
            sizes=[side for camera in request.policy_cameras for side in (camera.height, camera.width)],
            instruction=instruction,
            payload=payload,
            state=[frame.state[index] for index in request.policy_numbers],
            stamp_ns=frame.stamp_ns,
            waited_ns=now_ns - track.received_ns,
            turn_wait_ns=max(track.received_ns + self.age_limit.turn_ns - now_ns, 1),
            playing=frame.playing if continues else None,
            delay_ns=delay_ns,
            rested=self.sent.take_rest(),
            seen_only=track.seen_only,
            rate_percent=how.rate_percent if how is not None else FULL_RATE,
            start_delay_ns=max(delay_ns, 1) if from_arrival else 0,
        )

    def change(self) -> ChosenExecution | None:
        """The new choice of an execution, if the expected delay or the rate of answers changed it."""
        changed = self.execution.observe(self.expected_delay_ns, self.gap_ns)
        return self.execution.now if changed else None

    def halt(self, reason: str) -> None:
        """The robot holds, or a new epoch begins."""
        self.sent.halt(reason)
        self.execution.halt()

    def _validity_ms(self, forecast_ns: int) -> int:
        return max(self._ttl_ms, min(-(-forecast_ns // 1_000_000), LONGEST_FORECAST_MS))

    def arrived(self, seq: int, age_ns: int) -> bool:
        """The robot reports the age of a frame when its answer arrived; True for a new report of a late answer.

        The age counts up to `oldest_ns` only, so that no report makes later delays absurd.
        """
        return self.ages.arrived(seq, min(age_ns, self.age_limit.oldest_ns))

    def judge(self, track: SessionFrame, message: FrameResult) -> PendingAnswer | Withheld:
        """The answer to a frame if it is finite, within the limits, and starts no resting robot in mid-motion."""
        self.age_limit.times.observe(track.decode_ns + message.queue_ns + message.inference_ns)  # also if invalid
        if not message.valid or not within_limits(message.chunk, self._schema):
            text = "the policy's output was not finite or outside the action limits"
            fault = self.invalid.count_invalid()
            return Withheld("INTERNAL", Reason.POLICY_OUTPUT_INVALID, text, invalid=True, fault=fault)
        self.invalid.count_valid()
        self.sent.answered(track.frame.seq)
        if not self.sent.may_follow(message.report.continues):
            text = "withdrawn: it continues a chunk that the robot no longer executes"
            return Withheld("ABORTED", self.sent.halt_reason, text)
        return track.pending_answer(message, whole=self._whole)

    def is_late(self, ready: PendingAnswer, now_ns: int, delay_ns: int) -> bool:
        """True if an answer is too old to be sent. delay_ns: as in PendingAnswer.events."""
        age_ns = now_ns - ready.track.received_ns + delay_ns
        how = ready.track.execution
        if how is not None and how.from_arrival:  # its rows have moments only once it arrives
            return age_ns > self.age_limit.oldest_ns
        return (ready.late_ns(age_ns) if self._by_clock else age_ns) > self.age_limit.ns

    def events(self, ready: PendingAnswer, now_ns: int, delay_ns: int) -> list[Event]:
        """The events that send an answer now. delay_ns: as in PendingAnswer.events."""
        how = ready.track.execution
        valid_ms = self._ttl_ms if how is None else self._validity_ms(how.valid_ns)
        return ready.events(now_ns, delay_ns, valid_ms, -(-self.age_limit.ns // 1_000_000))

    def count_late(self) -> bool:
        """Count a frame that was too old while a newer one is in flight; True after LATE_IN_A_ROW of them."""
        self._late_in_a_row += 1
        return self._late_in_a_row >= LATE_IN_A_ROW

    def handed_out(self, ready: PendingAnswer, now_ns: int) -> None:
        """Record that an answer is sent now."""
        self._late_in_a_row = 0
        seq, report = ready.track.frame.seq, ready.report
        self.execution.sent(seq, now_ns)
        how = ready.track.execution
        step_ns = self._schema.motion_ns * FULL_RATE // (how.rate_percent if how is not None else FULL_RATE)
        fits_ns = report.conditioned_steps * step_ns if report.continues else None
        self.sent.add(seq, self._schema.horizon if self._whole else 1, ready.track.frame.stamp_ns)
        self.ages.sent(seq, now_ns - ready.track.received_ns, fits_ns)


def _newest_arrived(frame: CheckedFrame) -> int:
    """The newest answer that had arrived when a frame was taken; 0 = none."""
    return frame.arrived.seq if frame.arrived is not None else 0
