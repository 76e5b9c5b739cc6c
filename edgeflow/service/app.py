"""The service: composition, start and drain."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.chat_messages import ChatReady
from edgeflow.ipc.messages import Message, Pong, WarmupProgress, WorkerReady
from edgeflow.policies.registry import plugins
from edgeflow.service.children.forks import Forks
from edgeflow.service.children.launch import LaunchChild, Listeners
from edgeflow.service.children.operators import SessionOperators
from edgeflow.service.children.processes import ChildProcesses
from edgeflow.service.children.robots import RobotSessions
from edgeflow.service.children.single_actions import SingleActions
from edgeflow.service.children.watching import PageWatch
from edgeflow.service.frontends.grpc.server import ControlService, GrpcServer
from edgeflow.service.host.listen import address_text
from edgeflow.service.host.preflight import check_configured
from edgeflow.service.host.resources import lock_memory, set_scheduling
from edgeflow.service.host.watchdogs import LoopWatch, VitalTask
from edgeflow.service.observe.board import BoardMonitor
from edgeflow.service.observe.health import Health, HealthListener, HealthState
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Authenticator, TokensFile
from edgeflow.service.security.tls import Tls
from edgeflow.service.sessions.observers import Metrics, SessionObserver
from edgeflow.service.sessions.plane import TICK_S, ControlPlane
from edgeflow.service.sessions.watching import SessionWatch
from edgeflow.service.status import (
    ServiceStatus,
    chat_summary,
    clients_lines,
    clients_summary,
    forecast_line,
    policy_entry,
)
from edgeflow.service.vitals import ServiceVitals
from edgeflow.service.worker.process import Launch
from edgeflow.service.worker.standby import Workers
from edgeflow.service.worker.supervisor import Supervisor
from edgeflow.version import __version__
from edgeflow_client.clock import MonotonicClock

if TYPE_CHECKING:
    from edgeflow.service.recording import ServiceRecording
    from edgeflow.service.tracing.service import ServiceTracing

WORKER_STOP_S = 1.0
FILES_S = 1.0  # between checks for changed tokens and certificates
Announce = Callable[[ServiceStatus], None]


class Service:
    """The whole service: control in this process, worker and children in their own. status: the last announcement.

    Call `start`, then `stop`, on one loop. It listens to its supervisor. launch: starts a worker; launch_child:
    starts a child. Default: processes.
    """

    def __init__(
        self,
        config: ServiceConfig,
        announce: Announce,
        log: EventLog,
        launch: Launch | None = None,
        launch_child: LaunchChild | None = None,
        observers: Sequence[SessionObserver] = (),
    ) -> None:
        self.health = Health()
        self.metrics = Metrics()
        self._board = BoardMonitor(self.metrics.registry, log)
        self.fault = ""
        self.faulted = asyncio.Event()
        self._config = config
        self._announce = announce
        self._log = log
        self.status = ServiceStatus(phase=HealthState.STARTING, model=config.alias)
        self._clock = clock = MonotonicClock()
        self._pool = ThreadPoolExecutor(config.decode_threads, thread_name_prefix="decode")
        self._recording: ServiceRecording | None = None
        if config.recording.on:
            from edgeflow.service.recording import ServiceRecording  # needs the extra `record`

            self._recording = ServiceRecording(config, self.metrics, log)
            observers = [*observers, self._recording.observer]
        self._tracing: ServiceTracing | None = None
        if config.trace.on:
            from edgeflow.service.tracing.service import ServiceTracing  # needs the extra `trace`

            self._tracing = ServiceTracing(config, self.metrics, log)
            observers = [*observers, self._tracing.observer]
        passes = self._recording.passes if self._recording is not None else None
        workers = Workers(config, lambda: self.plane.admission.pass_times, log, passes=passes)
        self._workers = workers if launch is None else None
        self.supervisor = Supervisor(launch or workers.launch, clock, config, self, log)
        self._watch = SessionWatch(lambda: self.plane.runners, lambda: self.plane.inputs, config.alias)
        self.plane = ControlPlane(
            config,
            port=self.supervisor,
            pool=self._pool,
            clock=clock,
            health=self.health,
            metrics=self.metrics,
            log=log,
            observers=[*observers, self._watch],
        )
        standby = (lambda: workers.standby) if launch is None else (lambda: "off")
        self._vitals = ServiceVitals(config, self, standby, clock)
        self._tokens = TokensFile(config.tokens_file, log)
        peers = [each for front in config.frontends.dialects.values() for each in front.peers]
        self._authenticator = Authenticator(self._tokens.entries, self.metrics, log, peers=peers)
        self._tls = Tls(config.tls, log) if config.tls.cert else None
        self._forks = Forks(config, log)
        self._launch_child = launch_child or self._forks.launch
        self._listeners: Listeners | None = None
        self._children: ChildProcesses | None = None
        self._listener: HealthListener | None = None
        self._grpc: GrpcServer | None = None
        self._vital: list[VitalTask] = []
        self._loop_watch = LoopWatch(self._loop_stalled, self._loop_resumed, self._loop_lost)

    async def start(self) -> None:
        """Listen, start the worker and wait until it is ready. On a StartError everything is released."""
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def stop(self) -> None:
        """Drain in order: become unready, reject new work, notify robots, finish, end streams, end the processes."""
        self.health.move(HealthState.DRAINING)
        self._publish(HealthState.DRAINING)
        drain_ms = self._config.timing.drain_ms
        children = [self._children.drain(drain_ms)] if self._children is not None else []
        await asyncio.gather(self.plane.drain(drain_ms), *children)
        await self._release()
        self.health.move(HealthState.STOPPED)
        self._publish(HealthState.STOPPED)

    # The supervisor's listener.

    def worker_progress(self, message: WarmupProgress) -> None:
        if self.health.state is HealthState.STARTING:
            self.health.move(HealthState.WARMING)
        if self.health.state is HealthState.WARMING:
            self._publish(HealthState.WARMING, step=message.step, done=message.done, total=message.total)

    def worker_ready(self, ready: WorkerReady) -> None:
        if self.health.state is HealthState.STARTING:
            self.health.move(HealthState.WARMING)
        if ready.pass_times != self.plane.admission.pass_times:  # not those of the worker before
            self._board.measured()
        self.plane.worker_ready(ready)
        _freeze()
        self._models_changed()
        self.health.move(HealthState.READY)
        if self._workers is not None:
            self._workers.prepare()

    def worker_launched(self, handover: socket.socket | None) -> None:
        if self._children is not None:
            self._children.worker_launched(handover)

    def worker_message(self, message: Message) -> None:
        if isinstance(message, ChatReady):
            self.status = replace(self.status, chat=chat_summary(message))
        else:
            if isinstance(message, Pong):
                self._vitals.pong(message)
            self.plane.worker_message(message)

    def worker_writable(self) -> None:
        self.plane.worker_writable()

    def worker_lost(self, cause: str) -> None:
        self.health.move(HealthState.DEGRADED)
        self.metrics.worker_restarts.labels(cause).inc()
        if cause == "hung":
            self.metrics.watchdog_fired.labels("worker").inc()
        self.plane.worker_lost()

    def worker_without_graphs(self) -> None:
        if self._workers is not None:
            self._workers.without_graphs()

    def worker_fault(self, text: str) -> None:
        """End the service: robots get STOP, and the process exits with 1. Only the first fault counts."""
        if self.fault:
            return
        self.fault = text
        self.faulted.set()
        self.health.move(HealthState.FAULT)
        self._log.event("fault", text=text)
        self._publish(HealthState.FAULT)
        self.plane.fault()

    async def _start(self) -> None:
        config = self._config
        for text in config.warnings:
            self._log.event("warning", text=text)
        if plugin := check_configured(config):
            self.supervisor.plugin = plugins()[plugin].origin
            if self._workers is not None:
                self._workers.pin_family(plugin)
        if self._recording is not None:
            self._recording.start()
        if self._tracing is not None:
            self._tracing.start()
        self._log.event("starting", version=__version__, model=config.alias, mode=config.mode, device=config.device)
        warnings = self._set_scheduling()
        self.metrics.open()
        self.metrics.watch("log_lines_lost", "Lines of the log that could not be written.", lambda: self._log.lost)
        self.health.listen(self.metrics.state)
        self.health.listen(lambda state: self._log.event("state", state=state.value))
        await self._listen()
        self._keep("ticker", self._tick())
        self._keep("watch-files", self._watch_files())
        if await self._board.found():
            self._keep("board", self._board.watch(self._models_changed))
        self._loop_watch.start()
        ready = await self._start_processes()
        forecasts = tuple(forecast_line(mode, seen) for mode, seen in self.plane.admission.modes().items())
        self._publish(
            HealthState.READY,
            device=ready.device,
            operators=ready.operators,
            memory=ready.memory,
            plugin=ready.plugin,
            plugins=tuple(each.origin for each in plugins().values()),
            recording=self._recording.summary if self._recording is not None else "",
            traces=self._tracing.summary if self._tracing is not None else "",
            step="",
            done=0,
            total=0,
            forecasts=forecasts,
            horizon=ready.schema.horizon,
            clients=clients_lines(clients_summary(self._config, ready, self.status.robots_port)),
            warnings=(*warnings, *self.supervisor.warnings, *ready.warnings),
        )

    async def _start_processes(self) -> WorkerReady:
        """Start worker and children side by side; the first that fails ends the start."""
        if self._children is None:
            raise RuntimeError("the service does not listen yet")
        children = asyncio.create_task(self._children.start(self._keep), name="children-start")
        worker = asyncio.create_task(self.supervisor.start(), name="worker-start")
        try:
            await asyncio.wait({children, worker}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (children, worker):
                if task.done():
                    task.result()
            return await worker
        finally:
            for task in (children, worker):
                task.cancel()
            await asyncio.gather(children, worker, return_exceptions=True)

    def _set_scheduling(self) -> list[str]:
        """Apply control's CPUs, priority and memory lock; returns a warning for each that is not permitted."""
        wanted = self._config.realtime
        warnings = set_scheduling("front", 0, wanted.front_cpus, wanted.front_priority)
        warnings += lock_memory() if wanted.lock_memory else []
        for text in warnings:
            self._log.event("warning", text=text)
        return warnings

    async def _listen(self) -> None:
        """Bind every port, before any child starts."""
        config = self._config
        service = ControlService(self.plane, self._authenticator, self.metrics, self._log)
        self._grpc = GrpcServer(config, service, self._authenticator, self._tls, self.health)
        listeners = self._listeners = Listeners(config)
        self._listener = HealthListener(listeners.health, self.health)
        self._listener.start()
        grpc_port = await self._grpc.start()
        self._keep("grpc-health", self._grpc.report())
        self._children = ChildProcesses(
            listeners.roles(),
            self._launch_child,
            actions=lambda: SingleActions(self.plane, self._authenticator, self._log),
            robots=RobotSessions(self.plane, self._authenticator, self._log),
            operators=SessionOperators(
                self.plane, self._authenticator, self._watch.sessions, lambda: self.status.grpc_address, self._log
            ),
            watching=PageWatch(self._watch, self._vitals, self._clock, self._log),
            health=self.health,
            tokens=self._tokens,
            tls=self._tls,
            metrics=self.metrics,
            models=self._models,
            inputs=lambda: self.plane.inputs,
            clock=self._clock,
            log=self._log,
        )
        self._publish(
            HealthState.STARTING,
            grpc_port=grpc_port,
            http_port=listeners.http_port,
            health_port=self._listener.port,
            robots_port=listeners.robots_port,
            grpc_address=address_text(config.grpc.host, grpc_port),
            http_address=f"{'https' if self._tls else 'http'}://{address_text(config.http.host, listeners.http_port)}",
            robots_address=address_text(config.frontends.host, listeners.robots_port),
        )

    def _models(self) -> list[dict[str, Any]]:
        """The policy's entry in /v1/models."""
        port = self._listeners.robots_port if self._listeners is not None else None
        return [policy_entry(self._config, self.plane.newest_worker, self._board.summary(), port)]

    def _models_changed(self) -> None:
        if self._children is not None:
            self._children.models_changed()

    async def _release(self) -> None:
        self._loop_watch.stop()
        for task in self._vital:
            await task.stop()
        ending = [self.supervisor.stop(WORKER_STOP_S)]
        ending += [self._grpc.stop()] if self._grpc is not None else []
        ending += [self._children.stop()] if self._children is not None else []
        await asyncio.gather(*ending)
        await self._forks.close()
        if self._workers is not None:
            await self._workers.close()
        if self._listener is not None:
            self._listener.stop()
        if self._listeners is not None:
            self._listeners.close()
        if self._recording is not None:
            await self._recording.stop()
        if self._tracing is not None:
            await self._tracing.stop()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        self.metrics.close()

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a task whose end is a fault of the service."""
        self._vital.append(VitalTask(name, work, self._log, self.worker_fault))

    async def _tick(self) -> None:
        """Tick at absolute times, so that delays are measured but do not accumulate."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + TICK_S, loop.time() - TICK_S)
            await asyncio.sleep(due - loop.time())
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self._loop_watch.beat()
            self.plane.tick()
            if self._children is not None:
                self._children.tick()

    def _loop_stalled(self, stack: list[str]) -> None:
        self.health.stalled = True
        self.metrics.watchdog_fired.labels("loop").inc()
        self._log.event("loop_stalled", stack=stack)

    def _loop_resumed(self) -> None:
        self.health.stalled = False
        self._log.event("loop_resumed")

    def _loop_lost(self) -> None:
        self._log.event("loop_lost", text="the event loop is blocked: exiting")
        self._log.close()
        os._exit(1)  # the loop is blocked, so that an orderly end is impossible; the worker follows

    async def _watch_files(self) -> None:
        """Reload changed tokens and certificates; sessions and answers of revoked tokens end."""
        while True:
            await asyncio.sleep(FILES_S)
            renewed = self._tls is not None and self._tls.refresh()
            if self._tokens.refresh():
                self._authenticator.replace(self._tokens.entries)
                renewed = True
            if renewed and self._children is not None:
                self._children.credentials_changed()
            self.plane.end_callers(self._authenticator.may_control)

    def _publish(self, phase: HealthState, **changes: object) -> None:
        self.status = replace(self.status, phase=phase, **changes)  # type: ignore[arg-type]
        self._announce(self.status)


def _freeze() -> None:
    """Exempt all live objects from garbage collection, after collecting garbage of the last freeze."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
