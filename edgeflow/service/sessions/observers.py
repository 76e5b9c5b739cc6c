"""Observers of sessions: metrics, the log, and probes of the fault tests.

They are called on the event loop with immutable values, and must return at once. Metrics have their own registry, and
bounded labels: never a session or a robot.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Info

from edgeflow.ipc.messages import Pong, WorkerReady
from edgeflow.scheduler.forecast import Forecast
from edgeflow.scheduler.pace import pace_text
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.observe.health import HealthState
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.admission import SessionPlan
from edgeflow.service.sessions.frames import ActionEvent, End, Event, ReceiptEvent, StatusEvent
from edgeflow.version import __version__
from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.errors import RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import Seam
from edgeflow_client.types import ActionSchema, Command, Disposition, Execution

POOLS = ("asyncio_", "uvloop_", "decode")  # of the event loop, whichever it is, and of the decoders
PASS_BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)


NOTHING_RAN = Pong(
    nonce=0, passes=0, rows=0, full_passes=0, pass_ns=[], pass_prefills=[], pass_decodes=[], pass_whole=[]
)
"""The counts of a worker that has just started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session that was opened."""

    number: int
    request: OpenRequest
    plan: SessionPlan
    caller: Caller
    schema: ActionSchema
    """The meaning of the actions that the robot gets."""
    single: bool = False
    """It is a session of one frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFrame:
    """A frame in order with valid contents. Its session may still drop it."""

    session: int
    frame: CheckedFrame
    epoch: int
    instruction: str
    """The instruction in force, of the frame or of one before it."""
    gap_ns: int
    """Time since the session's last frame in order with valid contents; 0 for the first."""
    unknown_chunk: bool
    """The robot reports that it executes a chunk that it was never sent."""
    late_chunk: bool
    """The robot reports a chunk that arrived too late to continue the one it executed."""
    executed_age_ns: int | None = None
    """Age of the frame whose answer the robot executed at the capture; None if it reports none."""
    execution: Execution | None = None
    """How the robot executes answers; None for a client that asks for no execution."""
    waited_ns: int = 0
    """Time since it arrived on this machine, where another process read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSession:
    """A session that was closed with its stream."""

    number: int
    epoch: int
    end: End


class SessionObserver:
    """Receives the events of all sessions; every method does nothing by default."""

    def opened(self, session: OpenedSession) -> None:
        """A session was opened."""

    def observed(self, frame: ObservedFrame) -> None:
        """A frame in order with valid contents arrived."""

    def answered(self, session: int, action: ActionEvent) -> None:
        """The robot was sent an action."""

    def notified(self, session: int, event: Event) -> None:
        """The robot was sent something else: the outcome of a frame, a notice, HOLD or STOP."""

    def closed(self, session: ClosedSession) -> None:
        """A session was closed."""


class Observers(SessionObserver):
    """Several observers as one, in order. One that raises loses this event, and costs no robot its session."""

    def __init__(self, observers: Sequence[SessionObserver], log: EventLog) -> None:
        self._observers = tuple(observers)
        self._log = log

    def opened(self, session: OpenedSession) -> None:
        self._tell(lambda each: each.opened(session))

    def observed(self, frame: ObservedFrame) -> None:
        self._tell(lambda each: each.observed(frame))

    def sent(self, session: int, event: Event) -> None:
        """Report an event with `answered` or `notified`; receipts are left out."""
        if isinstance(event, ReceiptEvent):
            return
        if isinstance(event, ActionEvent) and event.command is Command.ACT:
            self._tell(lambda each: each.answered(session, event))
        else:
            self._tell(lambda each: each.notified(session, event))

    def closed(self, session: ClosedSession) -> None:
        self._tell(lambda each: each.closed(session))

    def _tell(self, call: Callable[[SessionObserver], None]) -> None:
        for each in self._observers:
            try:
                call(each)
            except Exception as error:
                self._log.incident("observer", error)


class SessionLog(SessionObserver):
    """Writes sessions, HOLD and STOP to the log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def opened(self, session: OpenedSession) -> None:
        caller, plan = session.caller, session.plan
        self._log.event(
            "session_opened",
            session=session.number,
            peer=caller.peer,
            principal=caller.principal,
            front=session.request.front,
            mode=plan.mode.value,
            pace=pace_text(plan.pace),
        )
        if session.request.ignored:
            self._log.event("fields_ignored", session=session.number, fields=session.request.ignored)

    def notified(self, session: int, event: Event) -> None:
        if isinstance(event, ActionEvent):
            self._log.event(event.command.value, session=session, epoch=event.epoch, reason=event.reason)

    def closed(self, session: ClosedSession) -> None:
        self._log.event("session_closed", session=session.number, epoch=session.epoch, reason=session.end.reason.label)


class Metrics(ProcessMetrics, SessionObserver):
    """The metrics of control. The time of a HOLD is counted at its end, and at each scrape before."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or MonotonicClock()
        self._periods_ns: dict[int, int] = {}
        self._held: dict[int, tuple[str, int]] = {}  # reason and the time until which it is counted, by session
        self._session_metrics()
        self._time_metrics()
        self._service_metrics()
        self._worker_metrics()
        self._pong = NOTHING_RAN
        for metric, values in self._alerted.items():
            for value in values:
                metric.labels(value)
        self.frames.labels(Disposition.DROPPED.value, Reason.ACTION_TOO_OLD)

    @property
    def _alerted(self) -> dict[Counter, Sequence[str]]:
        """Counts with alerts: shown as 0 from the start, since Prometheus sees no increase in a new series."""
        held = (Reason.WORKER_LOST, Reason.ACTION_TOO_OLD, Reason.POLICY_OUTPUT_INVALID)
        return {
            self.worker_restarts: ("eof", "hung", "protocol"),
            self.admission_rejected: (Reason.DEVICE_FULL, Reason.SESSIONS_TAKEN),
            self.safe_actions: (Reason.FAULT,),
            self.held_seconds: held,
            self.held_ticks: held,
        }

    def open(self) -> None:
        super().open()
        loop = asyncio.get_running_loop()
        self.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        self.pool_threads.set_function(lambda: sum(each.name.startswith(POOLS) for each in threading.enumerate()))

    def text_by_family(self) -> Iterator[bytes]:
        for session, (reason, _) in [*self._held.items()]:
            self._end_hold(session)
            self._held[session] = (reason, self._clock.now_ns())
        return super().text_by_family()

    def opened(self, session: OpenedSession) -> None:
        self._periods_ns[session.number] = session.request.control_period_ns
        self.sessions.inc()
        self.sessions_opened.inc()

    def observed(self, frame: ObservedFrame) -> None:
        if frame.gap_ns:
            self.ingress_gap.observe(frame.gap_ns / 1e9)
        if frame.unknown_chunk:
            self.unknown_chunks.inc()
        if frame.late_chunk:
            self.late_chunks.inc()
        if frame.executed_age_ns is not None:
            self.latency_at_execution.observe(frame.executed_age_ns / 1e9)
        if frame.frame.resting and frame.frame.arrived is not None and frame.execution is not None:
            self.resting_frames.labels(frame.execution.value).inc()

    def answered(self, session: int, action: ActionEvent) -> None:
        if session in self._held:
            self._end_hold(session)
        self.actions.labels(action.command.value, action.reason).inc()
        timings, report = action.timings, action.report
        self.decode_seconds.observe(timings.decode_ns / 1e9)
        self.queue_seconds.observe(timings.queue_ns / 1e9)
        self.inference_seconds.observe(timings.inference_ns / 1e9)
        self.e2e_seconds.observe(action.server_ns / 1e9)
        self.age_seconds.observe(action.age_ns / 1e9)
        self.action_passes.observe(timings.passes)
        self.unsettled.inc(action.unsettled > 0)
        if action.execution is not None:
            self.executions.labels(action.execution.execution.value).inc()
        if report.seam is not Seam.NONE:
            self.seams.labels(report.seam.value).inc()
        for limit in {each.limit for each in report.limited}:
            self.limited.labels(limit.value).inc()

    def notified(self, session: int, event: Event) -> None:
        match event:
            case StatusEvent():
                self.frames.labels(event.disposition.value, event.reason).inc(event.frames)
                if event.reason == Reason.ACTION_TOO_OLD:
                    self.deadline_missed.inc()
                elif event.reason == Reason.SUPERSEDED:
                    self.superseded.inc(event.frames)
                elif event.disposition is Disposition.REJECTED and _beyond_a_limit(event):
                    self.limit_rejections.labels(event.reason).inc()
            case ActionEvent():
                self.actions.labels(event.command.value, event.reason).inc()
                self.safe_actions.labels(event.reason).inc()
                self._end_hold(session)
                if event.command is Command.HOLD and session in self._periods_ns:
                    self._held[session] = (event.reason, self._clock.now_ns())

    def _end_hold(self, session: int) -> None:
        """Count the time since the session's HOLD began or was last counted, if it holds."""
        reason, since_ns = self._held.pop(session, ("", 0))
        if reason:
            held_ns = self._clock.now_ns() - since_ns
            self.held_seconds.labels(reason).inc(held_ns / 1e9)
            self.held_ticks.labels(reason).inc(held_ns / self._periods_ns[session])

    def closed(self, session: ClosedSession) -> None:
        reason = session.end.reason
        self._end_hold(session.number)
        self._periods_ns.pop(session.number, None)
        self.sessions.dec()
        self.sessions_closed.labels(reason.label).inc()
        if reason is Reason.SLOW_READER:
            self.watchdog_fired.labels("slow_reader").inc()

    @contextlib.contextmanager
    def rejections(self) -> Iterator[None]:
        """Count a session that is rejected within the context."""
        try:
            yield
        except RequestError as error:
            self.admission_rejected.labels(error.reason).inc()
            raise

    def pong(self, message: Pong) -> None:
        """Add the worker's counts since its last Pong."""
        before = self._pong
        self.passes.inc(max(0, message.passes - before.passes))
        self.rows.inc(max(0, message.rows - before.rows))
        self.full_passes.inc(max(0, message.full_passes - before.full_passes))
        self.eager_passes.inc(max(0, message.eager_passes - before.eager_passes))
        self.unusual_states.inc(max(0, message.unusual_states - before.unusual_states))
        for pass_ns in message.pass_ns:
            self.pass_seconds.observe(pass_ns / 1e9)
        self._pong = message

    def worker_started(self, ready: WorkerReady) -> None:
        """A new worker starts counting from zero."""
        self._pong = NOTHING_RAN
        self.build.info({"version": __version__, "model": ready.model, "model_sha": ready.model_fingerprint})

    def predict(self, modes: Mapping[str, Forecast]) -> None:
        """Set the forecast of each mode."""
        for mode, seen in modes.items():
            self.predicted_fps.labels(mode).set(seen.fps)
            self.predicted_age.labels(mode).set(seen.age_ns / 1e9)

    def state(self, state: HealthState) -> None:
        """Set the present state to 1 and all others to 0."""
        for each in HealthState:
            self.health_state.labels(each.value).set(each is state)
        self.draining.set(state is HealthState.DRAINING)

    def _session_metrics(self) -> None:
        counter = self._counter
        self.frames = counter("frames", "Frames by their outcome.", "disposition", "reason")
        self.actions = counter("actions", "Commands sent to robots: act, hold or stop.", "mode", "reason")
        self.safe_actions = counter("safe_action", "HOLD and STOP commands sent by the service.", "reason")
        self.held_seconds = counter("held_seconds", "Seconds for which the service had robots hold.", "reason")
        self.held_ticks = counter("held_ticks", "Control periods for which the service had robots hold.", "reason")
        self.executions = counter("executions", "Actions by how the robot executes them.", "execution")
        self.action_passes = self._histogram("action_passes", "Forward passes per action.", buckets=PASS_BUCKETS)
        self.unsettled = counter("actions_unsettled", "Actions with tokens that were not verified.")
        self.sessions = self._gauge("sessions", "Sessions that are open now.")
        self.sessions_opened = counter("sessions_opened", "Sessions opened since the start.")
        self.sessions_closed = counter("sessions_closed", "Sessions closed, by the reason of their end.", "reason")
        self.admission_rejected = counter("admission_rejected", "Sessions rejected when they were opened.", "reason")
        self.deadline_missed = counter("deadline_missed", "Frames dropped because their action was too old.")
        self.unknown_chunks = counter("unknown_chunks", "Chunks reported as executed that were never sent.")
        self.late_chunks = counter("late_chunks", "Chunks reported to arrive after the rows they were made for.")
        self.resting_frames = counter(
            "resting_frames", "Frames of robots that stood still after their first action.", "execution"
        )
        self.seams = counter("chunk_seams", "Chunks that continue the one in execution, or why they do not.", "seam")
        self.limited = counter("limited_chunks", "Chunks that a limit of the configuration changed.", "limit")
        self.superseded = counter("mailbox_superseded", "Frames replaced by a newer one before they were computed.")

    def _time_metrics(self) -> None:
        histogram = self._histogram
        self.age_seconds = histogram(
            "observation_age_seconds",
            "Latency of an action when sent, from its frame's capture, less the shortest transport.",
        )
        self.latency_at_execution = histogram(
            "latency_at_execution_seconds",
            "Age of the frame whose answer a robot executes, reported at each of its captures.",
        )
        self.decode_seconds = histogram("decode_seconds", "Time to decode the images of a frame.")
        self.queue_seconds = histogram("queue_seconds", "Time that a decoded frame waited for its first pass.")
        self.inference_seconds = histogram(
            "inference_seconds", "Time from the start of a frame's first pass to the end of its last."
        )
        self.encode_seconds = histogram("encode_seconds", "Time to convert an answer to a message.")
        self.e2e_seconds = histogram("frame_e2e_seconds", "Time from the receipt of a frame to its action.")
        self.ingress_gap = histogram("ingress_gap_seconds", "Time between consecutive frames of a session.")

    def _service_metrics(self) -> None:
        self.rpc = self._counter("rpc", "gRPC calls by status.", "method", "code")
        self.watchdog_fired = self._counter("watchdog_fired", "Watchdogs that acted.", "which")
        self.health_state = self._gauge("health_state", "The health of the service: 1 for its present state.", "state")
        self.tasks = self._gauge("tasks", "Tasks of control's event loop.")
        self.pool_threads = self._gauge("pool_threads", "Threads of control's pools.")
        self.draining = self._gauge("draining", "Whether the service is stopping (1) or not (0).")
        self.recording_files = self._counter("recording_files", "Files of recordings begun.")
        self.recording_failing = self._gauge("recording_failing", "Whether recordings cannot be written now (1).")
        self.recorder_restarts = self._counter("recorder_restarts", "Recorder processes that were replaced.")
        self.build = Info("edgeflow_build", "The version and the model served, as labels.", registry=self.registry)

    def _worker_metrics(self) -> None:
        counter = self._counter
        self.worker_progress = self._gauge(
            "worker_last_progress_timestamp_seconds", "Unix time of the last message from the worker."
        )
        self.worker_restarts = counter("worker_restarts", "Workers replaced, by what ended them.", "cause")
        self.passes = counter("passes", "Forward passes of the worker for robots.")
        self.full_passes = counter("full_passes", "Passes with a full pipeline.")
        self.eager_passes = counter("graph_eager_passes", "Passes without a CUDA graph, while graphs are on.")
        self.unusual_states = counter("unusual_states", "Frames with a state outside the range of its statistics.")
        self.rows = counter("rows", "Rows of all passes.")
        self.pass_seconds = self._histogram(
            "pass_seconds", "Duration of a pass for robots; the rate of its sum is their share of the device."
        )
        self.predicted_fps = self._gauge(
            "predicted_fps", "Forecast of the actions per second of one robot alone at full rate.", "mode"
        )
        self.predicted_age = self._gauge(
            "predicted_age_seconds", "Forecast of the latency of its actions when sent.", "mode"
        )


def _beyond_a_limit(event: StatusEvent) -> bool:
    """True for a message above a limit of size or number; rates do not count."""
    above = event.code == "RESOURCE_EXHAUSTED" or event.reason.endswith(("_TOO_LARGE", "_TOO_LONG"))
    return above and event.reason != Reason.RATE_EXCEEDED
