"""The worker's answers: whether the robot gets them, what every action must pass, and how old it may be.

- Three invalid outputs in a row put the session in fault: STOP, and every frame is rejected until the robot sends
  `Reset`. These rejections do not count towards ending the stream.
- An answer that continues a chunk from before a HOLD is withdrawn as one that waited then: it would start a resting
  robot in mid-motion. An answer that continues none acts.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from edgeflow.contract import Chunk
from edgeflow.ipc.messages import FrameResult
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.frames import InvalidOutputs, Ready, SentChunks, SessionFrame
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

MEASURED_NS = 2_000_000_000  # measured times count up to this, or up to a multiple of the forecast age
MEASURED_TIMES = 4
LATE_IN_A_ROW = 3
IN_FLIGHT = 3  # times K: more than twice the frames that are in flight or wait
LIMIT_TOLERANCE = 1e-6  # of a dimension's range, for rounding
MOST = sys.float_info.max


def within_limits(chunk: Chunk, schema: ActionSchema) -> bool:
    """True if a chunk has the schema's shape and step, and all its actions are within the limits; NaN is not."""
    if (chunk.horizon, chunk.dims, chunk.step_ms) != (schema.horizon, len(schema.low), schema.step_ms):
        return False
    bounds = list(map(_bounds, schema.low, schema.high))
    if chunk.horizon == 1:
        return all(low <= value <= high for value, (low, high) in zip(chunk.values, bounds, strict=True))
    lowest, highest = np.array(bounds, np.float64).reshape(-1, 2).T
    rows = np.array(chunk.values, np.float64).reshape(chunk.horizon, chunk.dims)
    return bool(((lowest <= rows) & (rows <= highest)).all())


def _bounds(low: float, high: float) -> tuple[float, float]:
    """The least and the greatest value of a dimension, both finite."""
    slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
    return max(low - slack, -MOST), min(high + slack, MOST)


def validity_ms(ttl_ms: int, schema: ActionSchema) -> int:
    """How long a robot may execute an answer: ttl_ms, or until the last row of its chunk is over."""
    return min(ttl_ms, math.ceil(schema.horizon * schema.step_ms)) if schema.horizon > 1 else ttl_ms


class FrameTimes:
    """How long the last frames took in the worker. One stall cannot move it: it is the median of `most` frames.

    most: more than twice the frames that a stall can catch in flight.
    """

    def __init__(self, most: int) -> None:
        self._last_ns = deque([0] * most, maxlen=most)
        self.typical_ns = 0

    def observe(self, took_ns: int) -> None:
        """Take a frame's time."""
        self._last_ns.append(took_ns)
        self.typical_ns = median_low(self._last_ns)


class AgeLimit:
    """How old a frame may be when its action is executed.

    explicit_ns: from the session or the configuration; None = the validity of an action and the age forecast for the
    session, or the time that its frames take where that is longer, within bounds. reach_ns: how long after the capture
    of a frame the last row of its chunk is due, from which that row's age counts. waits: the robot waits for each
    answer, and its chunk is valid until it asks again.
    """

    def __init__(
        self, explicit_ns: int | None, validity_ns: int, times: FrameTimes, reach_ns: int = 0, *, waits: bool = False
    ) -> None:
        self._waits = waits
        self.times = times
        self.foretold_ns = 0
        self._reach_ns = reach_ns
        self._explicit_ns = explicit_ns
        self._validity_ns = validity_ns

    @classmethod
    def of(cls, request: OpenRequest, schema: ActionSchema, ttl_ms: int, times: FrameTimes | None) -> AgeLimit:
        """The limit of a session. times: of all sessions of one frame; None = the session's own."""
        times = FrameTimes(IN_FLIGHT * len(schema.names)) if times is None else times
        validity_ns = ttl_ms * 1_000_000
        if not request.front:
            return cls(request.max_action_age_ns, validity_ns, times, reach_ns=schema.reach_ns)
        return cls(request.max_action_age_ns, max(validity_ns, request.control_period_ns), times, waits=True)

    @property
    def ns(self) -> int:
        """The limit as it is now."""
        if self._explicit_ns is not None:
            return self._explicit_ns
        return self._validity_ns + self._expected_ns

    @property
    def oldest_ns(self) -> int:
        """The age of a frame from which no row of its answer is executed."""
        return self.ns + self._reach_ns

    @property
    def spare_ns(self) -> int:
        """The part of the limit that remains beyond the time that frames are expected to take."""
        return self.oldest_ns - self._expected_ns

    @property
    def turn_ns(self) -> int:
        """The time that a frame may wait for its turn; another half is for jitter, unless its robot waits with it."""
        return max(self.spare_ns, 0) // (1 if self._waits else 2)

    @property
    def _expected_ns(self) -> int:
        return max(self.foretold_ns, min(self.times.typical_ns, max(MEASURED_NS, MEASURED_TIMES * self.foretold_ns)))


@dataclass(frozen=True, slots=True)
class Withheld:
    """An answer that the robot does not get."""

    code: str
    reason: str
    text: str
    invalid: bool = False
    """The policy's output is wrong."""
    fault: bool = False
    """Once too often."""


class SessionAnswers:
    """The answers of a session. sent: the chunks that the robot got last; ages: of their frames when they arrived.

    schema: of the policy's chunks. whole: the robot gets all rows. by_clock: it executes them by the clock, from the
    row that is due on; else from the first one on, whenever the answer comes.
    """

    def __init__(self, schema: ActionSchema, age_limit: AgeLimit, *, whole: bool, by_clock: bool = True) -> None:
        self.sent = SentChunks()
        self.ages = AnswerAges()
        self.invalid = InvalidOutputs()
        self._schema = schema
        self._age_limit = age_limit
        self._whole = whole
        self._by_clock = by_clock
        self._late_in_a_row = 0

    @property
    def expected_delay_ns(self) -> int:
        """The age of the next frame when its answer arrives: as measured, for the first ones at least as forecast."""
        return self.ages.expected_ns(self._age_limit.foretold_ns)

    def arrived(self, seq: int, age_ns: int) -> bool:
        """The robot says how old a frame was when its answer arrived; True if that is news, and it came too late.

        What is older than any row may be counts as just that old, so that no report makes later delays absurd.
        """
        return self.ages.arrived(seq, min(age_ns, self._age_limit.oldest_ns))

    def judge(self, track: SessionFrame, message: FrameResult) -> Ready | Withheld:
        """The answer to a frame, if it is finite, within the limits and starts no resting robot in mid-motion."""
        self._age_limit.times.observe(track.decode_ns + message.queue_ns + message.inference_ns)
        if not message.valid or not within_limits(message.chunk, self._schema):
            text = "the policy's output was not finite or outside the action limits"
            fault = self.invalid.rejected()
            return Withheld("INTERNAL", Reason.POLICY_OUTPUT_INVALID, text, invalid=True, fault=fault)
        self.invalid.passed()
        self.sent.answered(track.frame.seq)
        if not self.sent.carries_on(message.report.continues):
            text = "withdrawn: it continues a chunk that the robot does not play any more"
            return Withheld("ABORTED", self.sent.halted_for, text)
        return track.ready(message, whole=self._whole)

    def is_late(self, ready: Ready, now_ns: int, delay_ns: int) -> bool:
        """True if an answer is too old to be handed out. delay_ns: as in Ready.events."""
        age_ns = now_ns - ready.track.received_ns + delay_ns
        return (ready.late_ns(age_ns) if self._by_clock else age_ns) > self._age_limit.ns

    def count_late(self) -> bool:
        """Count a frame that was too old while a newer one is in flight; True after LATE_IN_A_ROW of them."""
        self._late_in_a_row += 1
        return self._late_in_a_row >= LATE_IN_A_ROW

    def handed_out(self, ready: Ready, now_ns: int) -> None:
        """Note that the robot gets an answer now."""
        self._late_in_a_row = 0
        seq, report = ready.track.frame.seq, ready.report
        fits_ns = round(report.conditioned_steps * self._schema.step_ms * 1e6) if report.continues else None
        self.sent.add(seq, self._schema.horizon if self._whole else 1)
        self.ages.sent(seq, now_ns - ready.track.received_ns, fits_ns)
