"""The control half of the worker: sessions, frames in flight, and the passes that turn them into actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import Chunk
from edgeflow.engine.control.continuity import Continuity
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.history import SessionHistory, state_of
from edgeflow.engine.control.profile import Pacer
from edgeflow.engine.control.records import (
    Answer,
    Begun,
    FrameRecord,
    PassTimer,
    SessionParameters,
    SteadyTokens,
    departed,
    dropped,
)
from edgeflow.engine.control.trajectory import Chosen, Trajectory
from edgeflow.engine.executor import Running
from edgeflow.engine.flow.frames import Previous
from edgeflow.engine.policy import Vectors
from edgeflow.ipc.messages import (
    ChangePace,
    CloseSession,
    FrameResult,
    Message,
    OpenSession,
    Pong,
    ResetSession,
    SessionOpened,
    SessionRejected,
    SubmitFrame,
)
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Pass
from edgeflow.scheduler.scheduler import PassPlanner
from edgeflow.scheduler.turns import TokenBucket
from edgeflow.scheduler.verification import VerificationSample
from edgeflow_client.clock import Clock
from edgeflow_client.errors import InvalidArgument, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import ChunkReport, Seam
from edgeflow_client.types import Disposition

KEPT_PASSES = 4096  # between two questions of control
KEPT_FRAMES = 1024  # likewise, of those that drafted


class ControlLoop:
    """The robots' sessions on one engine, whose passes the worker's loop launches. timed: answers bring their times."""

    def __init__(
        self,
        engine: PassEngine,
        scheduler: PassPlanner,
        clock: Clock,
        publish: Callable[[Message], None],
        *,
        default_unnorm_key: str,
        pacer: Pacer | None,
        trajectory: TrajectoryConfig | None = None,
        timed: bool = False,
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._publish = publish
        self._default_unnorm_key = default_unnorm_key
        self._pacer = pacer
        self._trajectory = trajectory or TrajectoryConfig()
        self._opened: dict[int, SessionParameters] = {}
        self._sessions = count(1)  # as policies with state per session count them
        self._waiting: dict[FrameRef, SubmitFrame] = {}
        self._records: dict[FrameRef, FrameRecord] = {}
        self._timer = PassTimer(self._records) if timed else None
        self._answers = engine.answers()
        self._passes: deque[PassSample] = deque(maxlen=KEPT_PASSES)
        self._verification: deque[VerificationSample] = deque(maxlen=KEPT_FRAMES)

    def launch(self, turn_ns: int) -> Running[FrameRef] | None:
        """Plan the next pass and start it; None when there is none. turn_ns: when this turn of the loop began."""
        now_ns = self._clock.now_ns()
        self._leave(self._scheduler.expire(now_ns))
        begun = self._begin(now_ns)
        planned = self._scheduler.plan(now_ns)
        return None if planned is None else self._launch(planned, begun, turn_ns)

    def commit(self, running: Running[FrameRef]) -> PassSample:
        """Wait for a pass, and publish the actions that it finished; returns its time."""
        planned = running.ticket.planned
        outcomes = self._engine.collect(running.ticket)
        if self._timer is not None:
            self._timer.collected(running, self._clock.now_ns())
        self._answers.add(outcomes)
        left = self._scheduler.commit(planned.number, outcomes, self._clock.now_ns())
        self._leave([departure for departure in left if departure.reason is not Leaving.DONE])
        for departure in left:
            if departure.reason is Leaving.DONE:
                self._note_passes(departure)
                self._answer(self._answers.take(departure.frame), departure.passes)
        prefills, decodes, whole = planned.shape
        sample = running.sample(prefills, decodes, self._clock.now_ns(), on_device=self.ahead > 0, whole=whole)
        self._passes.append(sample)
        return sample

    def wake_at_ns(self) -> int | None:
        """When there will be a pass even if no frame arrives."""
        return self._scheduler.wake_at_ns(self._clock.now_ns())

    def take_passes(self) -> list[PassSample]:
        """Every pass since the last call: its shape and its time, on the device where launching only enqueues, else
        the time of its turn of the loop.
        """
        passes = list(self._passes)
        self._passes.clear()
        return passes

    def pong(self, nonce: int) -> Pong:
        """The counts so far, with every pass, and every frame that drafted and left, since the last call."""
        counts, passes, frames = self._scheduler.counts, self.take_passes(), list(self._verification)
        self._verification.clear()
        return Pong(
            nonce=nonce,
            passes=counts.passes,
            rows=counts.rows,
            full_passes=counts.full_passes,
            pass_ns=[sample.ns for sample in passes],
            pass_prefills=[sample.prefills for sample in passes],
            pass_decodes=[sample.decodes for sample in passes],
            pass_whole=[sample.whole for sample in passes],
            eager_passes=self._engine.graphs.eager_passes if self._engine.graphs else 0,
            settling_stages=[sample.stages for sample in frames],
            settling_bins=[sample.tolerance_bins for sample in frames],
            settling_passes=[sample.passes for sample in frames],
            settling_done=[sample.verified for sample in frames],
            unusual_states=self._engine.policy.unusual_states,
        )

    # Requests of the control process.

    def open(self, message: OpenSession) -> bool:
        """Give a session its ring, or publish why it is rejected; True when it has one."""
        key = message.unnorm_key or self._default_unnorm_key or None
        try:
            self._check_unnorm_key(key)
            self._rows(message.instruction)
            schema = self._engine.policy.action_schema(key)
            program = self._engine.policy.program(key)
            now_ns, period_ns = self._clock.now_ns(), message.period_ns
            turns = TokenBucket.of_period(period_ns, now_ns) if period_ns else None
            self._scheduler.open(message.session, message.epoch, message.pace, program, turns)
        except RequestError as error:
            self._publish(SessionRejected(message.session, error.code, error.text, error.field, error.reason))
            return False
        self._opened[message.session] = SessionParameters(
            unnorm_key=key,
            schema=schema,
            program=program,
            deadline_ns=message.deadline_ns,
            patience_ns=message.patience_ns,
            steady=SteadyTokens(self._engine.near[: program.passes]),
            rtc=message.continues and self._engine.policy.rtc is not None,
            trajectory=Trajectory(self._trajectory, schema, self._engine.policy.inputs),
            chunks=Continuity(round(schema.step_ms * 1e6)) if schema.horizon > 1 else None,
            history=SessionHistory(self._engine.policy, self._sessions),
        )
        self._publish(SessionOpened(message.session, schema))
        return True

    def reset(self, message: ResetSession) -> None:
        """Begin a new epoch."""
        self._leave(self._scheduler.reset(message.session, message.epoch))
        opened = self._opened.get(message.session)
        if opened is not None:
            opened.history.enter(message.epoch)
            if opened.chunks is not None:
                opened.chunks.forget()

    def close(self, message: CloseSession) -> None:
        """Free the session's ring."""
        self._leave(self._scheduler.close(message.session))
        opened = self._opened.pop(message.session, None)
        if opened is not None:
            opened.history.end()

    def change_pace(self, message: ChangePace) -> None:
        """Change the pace, and how old frames with drafts may get, from the session's next frame on."""
        self._scheduler.change_pace(message.session, message.pace)
        if (opened := self._opened.get(message.session)) is not None:
            self._opened[message.session] = replace(opened, patience_ns=message.patience_ns)

    def supersede(self, frames: Sequence[SubmitFrame]) -> None:
        """Report frames that newer ones replaced before the loop saw them, or that are only part of a history."""
        for frame in frames:
            if (opened := self._opened.get(frame.session)) is not None:
                opened.history.add(frame)
            self._publish(departed(_ref(frame), Leaving.SUPERSEDED))

    def accept(self, message: SubmitFrame, arrived_ns: int) -> None:
        """Offer a frame to the scheduler; the newest of a session wins."""
        ref = _ref(message)
        opened = self._opened.get(ref.session)
        if opened is not None:
            opened.history.add(message)
        try:
            rows = self._rows(message.instruction, state_of(message, self._engine.policy.inputs))
        except RequestError as error:
            if opened is not None:
                opened.history.remove(message)
            self._reject(ref, error)
            return
        self._waiting[ref] = message
        self._records[ref] = FrameRecord(message=message, arrived_ns=arrived_ns)
        deadline_ns = arrived_ns + (opened.deadline_ns if opened else 0)
        patience_ns = opened.patience_ns if opened else 0
        expires_ns = arrived_ns - message.waited_ns + patience_ns if patience_ns else 0
        waits_until_ns = arrived_ns + message.turn_wait_ns if message.turn_wait_ns else 0
        self._leave(self._scheduler.offer(Frame(ref, rows, deadline_ns, expires_ns, waits_until_ns)))

    def _check_unnorm_key(self, key: str | None) -> None:
        known = self._engine.policy.unnorm_keys
        if key is None and len(known) > 1:
            raise InvalidArgument(f"choose one of {', '.join(known)}", field="unnorm_key")
        if key is not None and key not in known:
            raise InvalidArgument(f"unknown; choose one of {', '.join(known)}", field="unnorm_key")

    def _rows(self, instruction: str, state: Vectors | None = None) -> int:
        tokens, limit = self._engine.policy.text_rows(instruction, state), self._engine.text_rows
        if tokens > limit:
            raise InvalidArgument(
                f"has {tokens} prompt tokens; the limit is {limit}",
                field="instruction",
                reason=Reason.INSTRUCTION_TOO_LONG,
            )
        return self._engine.policy.fixed_rows + tokens

    def awaits_answer(self, now_ns: int) -> bool:
        """True if the next frame may have to continue an answer whose pass is not committed."""
        return any(
            self._scheduler.is_finishing(ref.session) and self._opened[ref.session].needs_previous
            for ref in self._scheduler.next_frames(now_ns)
        )

    @property
    def holds_frames(self) -> bool:
        """As in Scheduler."""
        return self._scheduler.holds_frames

    @property
    def ahead(self) -> int:
        """Passes that may be in flight while the next one is planned: none where a pacer delays the host."""
        return self._engine.launch_ahead if self._pacer is None else 0

    def _begin(self, now_ns: int) -> Begun:
        """Prepare the frames that the next pass begins with; frames that the policy rejects leave.

        Other frames may take the place of one that leaves, so the scheduler is asked again then.
        """
        begun, complete = Begun(started_ns=self._clock.now_ns()), False
        while not complete:
            complete = True
            for ref in self._scheduler.next_frames(now_ns):
                if ref in begun.prompts:
                    continue
                begun.stamp = begun.stamp or self._engine.stamp()
                try:
                    begun.prompts[ref] = self._prepare(self._waiting[ref], self._records[ref])
                except RequestError as error:
                    self._scheduler.reject(ref)
                    self._reject(ref, error)
                    complete = False
        return begun

    def _launch(self, planned: Pass[FrameRef], begun: Begun, turn_ns: int) -> Running[FrameRef]:
        for segment in planned.prefills:
            frame = self._waiting.pop(segment.sequence)
            record = self._records[segment.sequence]
            self._answers.begin(segment.sequence, self._opened[frame.session].program)
            record.message = replace(frame, payload=b"")  # the pixels are the prompt's now
            record.started_ns = begun.started_ns
            record.drafts, record.tolerance_bins = segment.drafts, segment.tolerance_bins
        stamp = begun.stamp or self._engine.stamp()
        running = Running.of(self._engine.launch(planned, begun.prompts), turn_ns, stamp)
        if self._pacer:
            self._pacer.hold(planned, begun.started_ns)
        return running

    def _reject(self, ref: FrameRef, error: RequestError) -> None:
        """Drop a frame that the policy rejects, and publish the reason."""
        self._waiting.pop(ref, None)
        self._records.pop(ref, None)
        self._publish(dropped(ref, Disposition.REJECTED, error.code, error.reason, error.text))

    def _prepare(self, message: SubmitFrame, record: FrameRecord) -> Any:
        opened = self._opened[message.session]
        prompt = opened.history.prompt(message)
        record.is_continued = False
        if opened.chunks is None:
            return prompt
        record.plan, record.seam = opened.chunks.plan(message)
        if record.plan is None or record.plan.values is None or not opened.rtc:
            return prompt
        try:
            continued = self._engine.continued(prompt, Previous(record.plan.values, record.plan.delay))
        except RequestError:
            record.seam = Seam.REFUSED
            return prompt
        record.is_continued = continued is not prompt
        return continued

    def _answer(self, answer: Answer, passes: int) -> None:
        ref = answer.frame
        record, opened = self._records.pop(ref), self._opened[ref.session]
        if answer.finite:
            steady = opened.steady.of(ref.epoch, answer.token_ids, answer.verified)
            answer = replace(answer, token_ids=steady)
        chosen, report = self._choose(answer, record, opened)
        valid = answer.finite and bool(np.isfinite(chosen.actions).all())
        if valid and opened.chunks is not None:
            values = answer.values
            if values is not None:
                values = self._engine.as_sent(values[chosen.index], chosen.actions)
            opened.chunks.keep(record.message, chosen.actions, values, report)
        result = FrameResult if self._timer is None else self._timer.result(record)
        self._publish(
            result(
                session=ref.session,
                epoch=ref.epoch,
                seq=ref.seq,
                chunk=Chunk(tuple(chosen.actions.ravel().tolist()), len(chosen.actions), opened.schema.step_ms),
                token_ids=list(answer.token_ids),
                valid=valid,
                queue_ns=record.started_ns - record.arrived_ns,
                inference_ns=self._clock.now_ns() - record.started_ns,
                passes=passes,
                settled=answer.verified,
                report=report,
            )
        )

    def _choose(self, answer: Answer, record: FrameRecord, opened: SessionParameters) -> tuple[Chosen, ChunkReport]:
        """The chunk to be sent, and the report on it.

        Limits also take into account the answers sent since the launch; the rows that the policy continues were fixed
        then.
        """
        candidates, plan, seam = answer.values, record.plan, record.seam
        if opened.chunks is not None and (plan is not None or opened.trajectory.has_limits):
            found, _ = opened.chunks.plan(record.message)
            plan, seam = (found, seam if plan else Seam.CONTINUED) if found else (plan, seam)
        chosen = opened.trajectory.choose(
            1 if candidates is None else len(candidates),
            lambda index: self._engine.actions(answer, opened.unnorm_key, index),
            candidates,
            plan,
            state=record.message.state,
            delay=opened.chunks.delay(record.message) if opened.chunks is not None else 0,
        )
        conditioned = plan if opened.trajectory.has_limits else record.plan if record.is_continued else None
        unsaid = seam is Seam.CONTINUED and conditioned is None
        report = ChunkReport(
            continues=conditioned.seq if conditioned is not None else 0,
            conditioned_steps=conditioned.delay if conditioned is not None else 0,
            seam=Seam.NONE if unsaid or not (opened.rtc or opened.trajectory.has_limits) else seam,
            limited=chosen.limited,
            candidates=chosen.candidates,
            chosen=chosen.index,
        )
        return chosen, report

    def _leave(self, departures: list[Departure]) -> None:
        for departure in departures:
            self._note_passes(departure)
            self._waiting.pop(departure.frame, None)
            self._records.pop(departure.frame, None)
            self._answers.drop(departure.frame)
            self._publish(departed(departure.frame, departure.reason))

    def _note_passes(self, departure: Departure) -> None:
        """Note the passes in which a frame was verified, or that it had when it left before."""
        record = self._records.get(departure.frame)
        if record is not None and departure.passes and record.drafts:
            stages = record.drafts + 1
            verified = departure.verified >= stages
            self._verification.append(VerificationSample(stages, record.tolerance_bins, departure.passes, verified))


def _ref(message: SubmitFrame) -> FrameRef:
    return FrameRef(message.session, message.epoch, message.seq)
