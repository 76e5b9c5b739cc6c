"""The control plane: admits sessions, owns them, and routes messages between them and the worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from types import MappingProxyType

from edgeflow.config.matching import Names
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.ipc.messages import (
    CloseSession,
    FrameDropped,
    FrameResult,
    Message,
    Pong,
    SessionOpened,
    SessionRejected,
    WorkerReady,
)
from edgeflow.service.errors import error_of_code, no_worker
from edgeflow.service.host.spare import start_threads
from edgeflow.service.observation.requests import OpenRequest, check_answers, matched
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.admission import Admission, SessionPlan
from edgeflow.service.sessions.answers import FrameTimes, PolicyFacts
from edgeflow.service.sessions.capacity import Decoders, SessionCapacity
from edgeflow.service.sessions.frames import End
from edgeflow.service.sessions.observers import (
    ClosedSession,
    Metrics,
    Observers,
    SessionLog,
    SessionObserver,
)
from edgeflow.service.sessions.planner import Planner
from edgeflow.service.sessions.rates import SessionRules
from edgeflow.service.sessions.runner import SessionRunner, WorkerPort, open_session
from edgeflow.service.sessions.session import Session
from edgeflow_client.clock import Clock
from edgeflow_client.errors import ConfigError, RequestError, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command

TICK_S = 0.02
MOST_SINGLES = 64  # single actions at the same time


class ControlPlane:
    """All sessions of the service; runs on the event loop."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        port: WorkerPort,
        pool: Executor,
        clock: Clock,
        health: Health,
        metrics: Metrics,
        log: EventLog,
        observers: Sequence[SessionObserver] = (),
    ) -> None:
        self.config = config
        self.worker: WorkerReady | None = None
        self.newest_worker: WorkerReady | None = None  # kept while the worker is replaced
        self._port = port
        self._pool = pool
        start_threads(pool, config.decode_threads)
        self._clock = clock
        self._health = health
        self._metrics = metrics
        self._log = log
        self._observers = Observers([metrics, SessionLog(log), *observers], log)
        self._rules = SessionRules.of(config)
        self._names: dict[str, Names] = {}  # by front end
        self._runners: dict[int, SessionRunner] = {}
        self.runners: Mapping[int, SessionRunner] = MappingProxyType(self._runners)
        self._capacity = SessionCapacity(config.max_sessions or 0, config.limits.sessions_per_principal)
        self._returning: dict[int, asyncio.Task[None]] = {}
        self._opening: dict[int, asyncio.Future[SessionOpened]] = {}
        self._last_number = 0
        threads = min(config.decode_threads, max(len(os.sched_getaffinity(0)) - 1, 1))  # one is the worker's
        self._decoders = Decoders(threads, config.admission_headroom_percent)
        self.admission = Admission(config, self._decoders)
        self._single_times = FrameTimes(2 * MOST_SINGLES + 1)
        self._planner = Planner(self.admission, self._runners, metrics=metrics, log=log)
        self._draining = False
        self._all_closed = asyncio.Event()

    async def open(self, request: OpenRequest, caller: Caller, *, single: bool = False) -> SessionRunner:
        """Open a session; a typed RequestError if it is rejected. single: a session of one frame."""
        number = self._admit(caller)
        limit_ms = self.config.max_action_age_ms
        if request.max_action_age_ns is None and limit_ms:
            request = replace(request, max_action_age_ns=limit_ms * 1_000_000)
        try:
            if not (request.policy_cameras or request.policy_numbers):
                request = self.matched(request)
            if self.worker is None:
                raise no_worker()
            plan = await self._planner.plan(number, request)
            runner = await self._open(number, request, plan, single)
            self._register(runner)
            self._observers.opened(runner.opened(caller, single=single))
            return runner
        except BaseException:
            self._planner.leave(number)
            self._capacity.leave(number)
            raise

    @property
    def inputs(self) -> PolicyInputs | None:
        """The needs of the policy; None while no worker was ready."""
        return self.newest_worker.inputs if self.newest_worker is not None else None

    def matched(self, request: OpenRequest) -> OpenRequest:
        """The request with the cameras and state values that the policy gets."""
        if self.worker is None:
            raise no_worker()
        with self._metrics.rejections():
            return matched(request, self.worker.inputs, self._names[request.front])

    async def _open(self, number: int, request: OpenRequest, plan: SessionPlan, single: bool) -> SessionRunner:
        worker = self.worker
        opened = asyncio.get_running_loop().create_future()
        self._opening[number] = opened
        try:
            self._port.send(open_session(number, 1, request, plan, request.instruction))
            answer: SessionOpened = await opened
            if self.worker is not worker:  # replaced meanwhile: the ring was in the lost one
                raise no_worker()
            policy = PolicyFacts.of(answer.schema, worker, plan.pace)
            check_answers(request, answer.schema, policy.facts)
        except BaseException:
            self._port.send(CloseSession(number))
            raise
        finally:
            del self._opening[number]
        times = self._single_times if single else None
        session = Session(number, request, answer.schema, self._rules, self._clock.now_ns(), policy=policy, times=times)
        session.answers.take_forecast(self._planner.answers(number))
        return SessionRunner(
            session,
            plan,
            port=self._port,
            pool=self._pool,
            clock=self._clock,
            decoders=self._decoders,
            observers=self._observers,
            log=self._log,
            want_ring=self._want_ring,
            alone=self._alone,
        )

    async def change_mode(self, number: int, request: OpenRequest) -> None:
        """As in Planner."""
        await self._planner.change_mode(number, request)

    def close(self, runner: SessionRunner) -> None:
        """End a session whose stream is gone: frames in flight leave, the worker frees its slots. Idempotent."""
        session = runner.session
        if self._runners.pop(session.number, None) is None:
            return
        gone = End("CANCELLED", Reason.CLIENT_GONE)
        session.end(gone)
        while runner.take_events():
            pass
        self._port.send(CloseSession(session.number))
        self._planner.leave(session.number)
        self._capacity.leave(session.number)
        if not self._runners:
            self._all_closed.set()
        self._observers.closed(ClosedSession(number=session.number, epoch=session.epoch, end=session.ended or gone))

    # Messages of the worker.

    def worker_ready(self, ready: WorkerReady) -> None:
        """A worker is ready: give it the open sessions. ConfigError if the configuration does not fit its policy."""
        for front, dialect in self.config.frontends.dialects.items():
            if dialect.rows > (horizon := ready.schema.horizon):
                text = f"the policy answers with {horizon} action{'s' * (horizon > 1)}: clients cannot execute more"
                raise ConfigError(f"frontends.{front}.rows: {dialect.rows}, but {text}")
        self._names = {
            front: Names.of(self.config, ready.inputs, front) for front in ("", *self.config.frontends.dialects)
        }
        self.worker = self.newest_worker = ready
        self._capacity.allow(self.config.max_sessions or ready.max_sessions)
        self._metrics.worker_started(ready)
        self._planner.worker_ready(ready)
        for runner in self._runners.values():
            if runner.session.parked:
                runner.session.worker_back()
                runner.pump()
            else:
                runner.open_ring()

    def worker_message(self, message: Message) -> None:
        """Route a message of the worker to its session."""
        self._metrics.worker_progress.set_to_current_time()
        match message:
            case FrameResult() | FrameDropped():
                self._answer(message)
            case SessionOpened():
                self._opened(message)
            case SessionRejected():
                self._rejected(message)
            case Pong():
                self._metrics.pong(message)
                self._planner.observe(message, self._clock.now_ns())

    def worker_writable(self) -> None:
        """Frames can be sent again; sessions take turns."""
        for number in list(self._runners):
            if not self._port.writable:
                return
            runner = self._runners.pop(number)
            self._runners[number] = runner  # at the end: the next call starts with another session
            runner.pump()

    def worker_lost(self) -> None:
        """Every robot gets HOLD; all sessions stay open."""
        self.worker = None
        self._planner.worker_lost()
        for future in self._opening.values():
            if not future.done():
                future.set_exception(no_worker())
        for runner in self._runners.values():
            runner.session.worker_lost()
            runner.pump()

    # Calls of the service.

    def tick(self) -> None:
        """Check silence and age of every session; parked sessions release their capacity."""
        now_ns = self._clock.now_ns()
        self._planner.tick()
        for number, runner in self._runners.items():
            runner.session.tick(now_ns)
            runner.pump()
            if runner.session.parked and number not in self._returning:
                self._release(number)

    async def drain(self, timeout_ms: int) -> None:
        """Reject new sessions; open ones finish their frames in flight, or end at the timeout."""
        self._draining = True
        for runner in list(self._runners.values()):
            runner.session.drain(timeout_ms)
            runner.pump()
        if self._runners:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), timeout_ms / 1000)
        self.end_all(End("UNAVAILABLE", Reason.DRAINING, "the service is stopping"))

    def end_all(self, end: End) -> None:
        """End every session at once."""
        for runner in list(self._runners.values()):
            runner.end(end)

    def end_callers(self, stays: Callable[[Caller], bool]) -> None:
        """End the sessions of callers for whom `stays` is False: their token was revoked or has expired."""
        for number, caller in self._capacity:
            runner = self._runners.get(number)
            if runner is not None and not stays(caller):
                runner.end(End("UNAUTHENTICATED", Reason.REVOKED, "the token no longer permits this"))

    def fault(self) -> None:
        """No more workers can be started: end every session with STOP."""
        self.end_all(End("UNAVAILABLE", Reason.FAULT, "no worker can be started", Command.STOP))

    def _alone(self, runner: SessionRunner) -> bool:
        """True if no other session is active, so that a robot above its declared rate takes nothing from others."""
        return not any(other.session.active for other in self._runners.values() if other is not runner)

    def _want_ring(self, runner: SessionRunner) -> None:
        """A parked robot is back, and its frame waits: admit it again."""
        number = runner.session.number
        if number in self._runners and number not in self._returning:
            self._returning[number] = asyncio.create_task(self._readmit(number, runner), name="readmit")

    async def _readmit(self, number: int, runner: SessionRunner) -> None:
        """Give a parked session its capacity and slots again, or the reason why not; its next frame tries again."""
        try:
            self._capacity.reclaim(number)
            plan = await self._planner.plan(number, runner.session.request)
        except RequestError as error:
            self._release(number)
            runner.session.stay_parked(error)
        else:
            if number in self._runners and runner.session.ring_wanted:
                runner.reopen(plan)
            else:
                self._release(number)
        finally:
            del self._returning[number]
        runner.pump()

    def _release(self, number: int) -> None:
        self._planner.leave(number)
        if number in self._runners:
            self._capacity.release(number)
            self._end_surplus()

    def _end_surplus(self) -> None:
        """End the session that has been parked for longest, if too many are."""
        runner = self._runners.get(self._capacity.surplus or 0)
        if runner is not None:
            text = "the robot was silent, and too many others are"
            runner.end(End("RESOURCE_EXHAUSTED", Reason.SESSIONS_TAKEN, text))

    def _admit(self, caller: Caller) -> int:
        """Admit a new session and return its number."""
        with self._metrics.rejections():
            self._check_open()
            self._capacity.take(self._last_number + 1, caller)
        self._last_number += 1
        return self._last_number

    def _check_open(self) -> None:
        if self._draining:
            raise Unavailable("the service is stopping", reason=Reason.DRAINING)
        if self.worker is None or not self._health.ready:
            raise no_worker()

    def _register(self, runner: SessionRunner) -> None:
        self._runners[runner.session.number] = runner
        self._end_surplus()
        self._all_closed.clear()

    def _answer(self, message: FrameResult | FrameDropped) -> None:
        runner = self._runners.get(message.session)
        if runner is None:
            return
        if isinstance(message, FrameResult):
            runner.session.result(message)
        else:
            runner.session.dropped(message)
        runner.pump()

    def _opened(self, message: SessionOpened) -> None:
        future = self._opening.get(message.session)
        runner = self._runners.get(message.session)
        if future is not None and not future.done():
            future.set_result(message)
        elif runner is not None:
            runner.session.worker_ready()
            runner.pump()

    def _rejected(self, message: SessionRejected) -> None:
        future = self._opening.get(message.session)
        runner = self._runners.get(message.session)
        if future is not None and not future.done():
            future.set_exception(error_of_code(message.code, message.text, message.reason, message.field))
        elif runner is not None:
            runner.end(End(message.code, Reason.NOT_REOPENED, message.text))
