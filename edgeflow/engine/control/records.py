"""Records of the control loop: answers, frames in flight, sessions, messages about frames that leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.contract import StageProgram
from edgeflow.engine.control.continuity import Continuity, ExecutedRows
from edgeflow.engine.control.history import SessionHistory
from edgeflow.engine.control.trajectory import Trajectory
from edgeflow.engine.executor import Running, Stamp
from edgeflow.ipc.messages import FrameDropped, FrameResult, PassSpan, SubmitFrame, TimedFrameResult
from edgeflow.scheduler.plan import FrameRef, Leaving, Outcome
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import Seam
from edgeflow_client.types import ActionSchema, Disposition

AGREEMENT_BINS = 2


class SteadyTokens:
    """The exact tokens of one session, held steady: an unverified one changes only when two frames in a row agree on
    it.

    near [K]: True for displacements, which are passed on as they are. Frames agree within AGREEMENT_BINS; only those
    that are answered count. The first one of an epoch has none to agree with, and its tokens are taken.
    """

    def __init__(self, near: Sequence[bool]) -> None:
        self._exact = [index for index, is_near in enumerate(near) if not is_near]
        self._epoch = 0
        self._before: dict[int, int] = {}
        self._in_force: dict[int, int] = {}

    def of(self, epoch: int, tokens: Sequence[int], verified: int) -> tuple[int, ...]:
        """The tokens to act on [K]. verified: how many of them are verified."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._before.clear()
            self._in_force.clear()
        chosen = list(tokens)
        for index in self._exact:
            token = tokens[index]
            agreed = abs(token - self._before.get(index, token)) <= AGREEMENT_BINS
            if index >= verified and not agreed:
                chosen[index] = self._in_force[index]
            self._before[index], self._in_force[index] = token, chosen[index]
        return tuple(chosen)


@dataclass(slots=True, kw_only=True)
class FrameRecord:
    """A frame between its arrival and its action."""

    message: SubmitFrame
    arrived_ns: int
    started_ns: int = 0
    drafts: int = 0
    """Drafts after its prompt."""
    tolerance_bins: int = 0
    """The tolerance of these drafts."""
    plan: ExecutedRows | None = None
    """The rows executed from its capture on, as known when it was launched."""
    seam: Seam = Seam.NONE
    """Seam between `plan` and the answer; without a plan, the reason."""
    is_continued: bool = False
    """True when the answer continues `plan`."""
    spans: tuple[PassSpan, ...] = ()
    """Its passes so far, noted by a PassTimer."""


class PassTimer:
    """Notes the time of each pass in the records of its frames. records: those of the frames in flight."""

    def __init__(self, records: Mapping[FrameRef, FrameRecord]) -> None:
        self._records = records
        self._ended_ns = 0

    def collected(self, running: Running[FrameRef], now_ns: int) -> None:
        """A pass was collected just now."""
        planned = running.ticket.planned
        prefills, decodes, _ = planned.shape
        since_ns = max(running.turn_ns, self._ended_ns)
        for segment in planned.segments:
            if (record := self._records.get(segment.sequence)) is not None:
                span = PassSpan(
                    start_ns=max(since_ns, record.started_ns),
                    end_ns=now_ns,
                    steps=segment.passes,
                    prefills=prefills,
                    decodes=decodes,
                )
                record.spans = (*record.spans, span)
        self._ended_ns = now_ns

    def result(self, record: FrameRecord) -> Callable[..., FrameResult]:
        """Makes the answer to a frame that is done."""
        return partial(TimedFrameResult, spans=list(record.spans))


@dataclass(slots=True, kw_only=True)
class Begun:
    """The prepared frames that a pass begins with."""

    started_ns: int
    stamp: Stamp | None = None
    """A mark on the device before the first frame; None where launching computes."""
    prompts: dict[FrameRef, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParameters:
    """The parameters of a session, as in OpenSession, and those that follow from them with this policy."""

    unnorm_key: str | None
    schema: ActionSchema
    program: StageProgram
    deadline_ns: int
    patience_ns: int
    steady: SteadyTokens
    """The tokens that must not waver."""
    rtc: bool
    trajectory: Trajectory
    chunks: Continuity | None
    """The last chunks sent; None where answers are single actions."""
    history: SessionHistory
    """The observations that the policy may need."""

    @property
    def needs_previous(self) -> bool:
        """True if an answer depends on the ones before it."""
        return self.chunks is not None and (self.rtc or self.trajectory.has_limits)


_DEPARTURES = {
    Leaving.SUPERSEDED: (
        Disposition.SUPERSEDED,
        "",
        Reason.SUPERSEDED,
        "a newer frame came before this one was started",
    ),
    Leaving.OVERTAKEN: (Disposition.SUPERSEDED, "", Reason.OVERTAKEN, "a newer frame was answered first"),
    Leaving.EXPIRED: (
        Disposition.SUPERSEDED,
        "",
        Reason.ACTION_TOO_OLD,
        "it was too old to be answered, and a newer frame is in flight",
    ),
    Leaving.EARLY: (
        Disposition.REJECTED,
        "RESOURCE_EXHAUSTED",
        Reason.RATE_EXCEEDED,
        "its turn at the declared rate came too late for its age limit: the next frame has it",
    ),
    Leaving.EPOCH_CHANGED: (
        Disposition.DROPPED,
        "ABORTED",
        Reason.EPOCH_CHANGED,
        "the instruction or episode changed while this frame was under way",
    ),
    Leaving.CLOSED: (Disposition.DROPPED, "CANCELLED", Reason.SESSION_CLOSED, "the session was closed"),
}


def departed(ref: FrameRef, why: Leaving) -> FrameDropped:
    """The message about a frame that left the scheduler."""
    return dropped(ref, *_DEPARTURES[why])


def dropped(ref: FrameRef, disposition: Disposition, code: str, reason: str, text: str) -> FrameDropped:
    """The message about a frame that left."""
    return FrameDropped(
        session=ref.session,
        epoch=ref.epoch,
        seq=ref.seq,
        disposition=disposition.value,
        code=code,
        reason=reason,
        text=text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer to a frame."""

    frame: FrameRef
    finite: bool
    """False when a number that it comes from was not finite."""
    token_ids: tuple[int, ...] = ()
    """Its K action tokens, of which the first `verified` are; the others are what its last pass gave after
    wrong drafts.
    """
    verified: int = 0
    values: NDArray[np.float64] | None = None
    """[M, horizon, A]: M candidates, normalised; None where the answer has tokens."""


class AnswerBook:
    """Collects the answers of frames in flight, pass by pass. Frames that were not begun are ignored.

    answer: makes the answer from a frame, the number of its passes, and their outcomes.
    """

    def __init__(self, answer: Callable[[FrameRef, int, list[Any]], Answer]) -> None:
        self._answer = answer
        self._frames: dict[FrameRef, tuple[int, list[Any]]] = {}

    def __contains__(self, frame: FrameRef) -> bool:
        return frame in self._frames

    def begin(self, frame: FrameRef, program: StageProgram) -> None:
        self._frames[frame] = program.passes, []

    def add(self, outcomes: Iterable[Outcome[FrameRef]]) -> None:
        """Add the outcomes of a pass."""
        for outcome in outcomes:
            if outcome.sequence in self._frames:
                self._frames[outcome.sequence][1].append(outcome)

    def take(self, frame: FrameRef) -> Answer:
        """The answer of a frame that is done, which is forgotten."""
        return self._answer(frame, *self._frames.pop(frame))

    def drop(self, frame: FrameRef) -> None:
        """Forget a frame that left without an answer."""
        self._frames.pop(frame, None)
