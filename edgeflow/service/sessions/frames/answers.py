"""The worker's answers: whether the robot gets them, and how old they are when it does.

- Three invalid outputs in a row put the session in fault: STOP, and every frame is refused until the robot sends
  `Reset`. These refusals do not count towards ending the stream.
- An answer that continues a chunk from before a HOLD is withdrawn as one that waited then: it would start a resting
  robot in mid-motion. An answer that continues none acts.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.ipc.messages import FrameResult
from edgeflow.scheduler.answer_ages import AnswerAges
from edgeflow.service.sessions.frames.tracks import OutputGuard, Ready, SentChunks, Track
from edgeflow.service.sessions.gate import AgeLimit, within_limits
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema


@dataclass(frozen=True, slots=True)
class Withheld:
    """An answer that the robot does not get. invalid: the policy's output is wrong; fault: once too often."""

    code: str
    reason: str
    text: str
    invalid: bool = False
    fault: bool = False


class Answers:
    """The answers of a session. sent: the chunks that the robot got last; ages: of their frames when they arrived.

    schema: of the policy's chunks. whole: the robot gets all rows.
    """

    def __init__(self, schema: ActionSchema, age_limit: AgeLimit, *, whole: bool) -> None:
        self.sent = SentChunks()
        self.ages = AnswerAges()
        self.guard = OutputGuard()
        self._schema = schema
        self._age_limit = age_limit
        self._whole = whole

    @property
    def expected_delay_ns(self) -> int:
        """The age of the next frame when its answer arrives: as measured, for the first ones at least as foretold."""
        return self.ages.expected_ns(self._age_limit.foretold_ns)

    def arrived(self, seq: int, age_ns: int) -> bool:
        """The robot says how old a frame was when its answer arrived; True if that is news, and it came too late.

        What is older than any row may be counts as just that old, so that no report makes later delays absurd.
        """
        return self.ages.arrived(seq, min(age_ns, self._age_limit.oldest_ns))

    def judge(self, track: Track, message: FrameResult) -> Ready | Withheld:
        """The answer to a frame, if it is finite, within the limits and starts no resting robot in mid-motion."""
        self._age_limit.times.observe(track.decode_ns + message.queue_ns + message.inference_ns)
        if not message.valid or not within_limits(message.chunk, self._schema):
            text = "the policy's output was not finite or outside the action limits"
            fault = self.guard.refused()
            return Withheld("INTERNAL", Reason.POLICY_OUTPUT_INVALID, text, invalid=True, fault=fault)
        self.guard.passed()
        self.sent.answered(track.frame.seq)
        if not self.sent.carries_on(message.report.continues):
            text = "withdrawn: it continues a chunk that the robot does not play any more"
            return Withheld("ABORTED", self.sent.halted_for, text)
        return track.ready(message, whole=self._whole)

    def handed_out(self, ready: Ready, now_ns: int) -> None:
        """Note that the robot gets an answer now."""
        seq, report = ready.track.frame.seq, ready.report
        fits_ns = round(report.conditioned_steps * self._schema.step_ms * 1e6) if report.continues else None
        self.sent.add(seq, self._schema.horizon if self._whole else 1)
        self.ages.sent(seq, now_ns - ready.track.received_ns, fits_ns)
