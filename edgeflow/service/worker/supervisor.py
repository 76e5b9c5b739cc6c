"""Supervision of the worker: start, readiness, pings, loss, replacement."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CaptureError
from edgeflow.ipc.chat_messages import ChatReady
from edgeflow.ipc.messages import Message, Ping, Pong, Shutdown, WarmupProgress, WorkerFailed, WorkerReady
from edgeflow.service.errors import start_error
from edgeflow.service.host.watchdogs import VitalTask
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.rates import RollingCount
from edgeflow.service.worker.link import WorkerLink
from edgeflow.service.worker.process import KILL_WAIT_S, Launch, Launched
from edgeflow.service.worker.timeouts import StartLimits, WorkerSilence
from edgeflow_client.clock import Clock
from edgeflow_client.errors import StartError

PING_S = 0.25  # or a quarter of the permitted silence, if that is shorter: its answers carry the times of passes
CHECK_S = 0.1
BACKOFF_S = 0.2  # after a failed start, doubled with each
LONGEST_BACKOFF_S = 10.0


class WorkerListener(Protocol):
    """Receiver of the supervisor's events; all calls come on the loop."""

    def worker_launched(self, handover: socket.socket | None) -> None:
        """A worker was launched. handover: where it expects sockets to the chat front."""
        ...

    def worker_progress(self, message: WarmupProgress) -> None: ...

    def worker_ready(self, ready: WorkerReady) -> None:
        """A worker is ready. StartError if it cannot be used and must be ended."""
        ...

    def worker_message(self, message: Message) -> None: ...

    def worker_writable(self) -> None: ...

    def worker_lost(self, cause: str) -> None:
        """The worker is lost. cause: eof, protocol or hung."""
        ...

    def worker_without_graphs(self) -> None:
        """Workers launched from now on must not capture passes: that failed."""
        ...

    def worker_fault(self, text: str) -> None:
        """No more workers can be started, or the supervisor itself ended; text: the reason."""
        ...


class WorkerLife:
    """One worker, from its launch to its end."""

    def __init__(
        self, launch: Launch, clock: Clock, config: ServiceConfig, listener: WorkerListener, plugin: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[WorkerReady] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.warnings: tuple[str, ...] = ()
        self.failure = f"the policy is a plug-in: {plugin}" if plugin else ""  # its last words, if it says any
        self._launch = launch
        self._clock = clock
        self._timing = config.timing
        self._chunk_rows = config.chat.prefill_chunk
        self._listener = listener
        self.link = WorkerLink(self._receive, listener.worker_writable, self._on_lost)
        self._launched: Launched | None = None
        self._began: asyncio.Future[None] = loop.create_future()
        self._progress = WorkerSilence(self._timing.worker_progress_ms * 1_000_000)

    @property
    def serving(self) -> bool:
        """True once the worker is ready, until it is lost."""
        proved = self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None
        return proved and not self.lost.done()

    async def start(self, limits: StartLimits) -> WorkerReady:
        """Launch the worker and wait until it is ready; StartError if it fails or exceeds its limit."""
        try:
            launched = self._launched = self._launch()
            self.warnings = launched.warnings
            self.link.connect(launched.sock)
            self._listener.worker_launched(launched.handover)
        except OSError as error:
            raise StartError(f"the worker could not be launched: {error.strerror}") from None
        begin_s = self._timing.worker_progress_ms / 1000
        took_s = 0.0
        if launched.reserve:
            took_s = await _listen(self._began, begin_s)
            if not self._began.done():
                raise StartError(f"the worker in reserve did not begin within {begin_s:g} s")
        limit_s = limits.limit_s(reserve=launched.reserve)
        took_s += await _listen(self.ready, limit_s)
        if not self.ready.done():
            limits.exceeded(reserve=launched.reserve)
            why = f"; {self.failure}" if self.failure else ""
            raise StartError(f"the worker was not ready after {limit_s:g} s{why}")
        ready = self.ready.result()
        limits.took(took_s, reserve=launched.reserve)
        return ready

    async def watch(self) -> str:
        """Ping the worker until it is lost; returns the cause."""
        nonce, ping_at_ns = 0, 0
        ping_s = min(PING_S, self._timing.worker_progress_ms / 4000)
        check_s = min(CHECK_S, ping_s)
        while not self.lost.done():
            now_ns = self._clock.now_ns()
            if now_ns >= ping_at_ns:
                nonce, ping_at_ns = nonce + 1, now_ns + int(ping_s * 1e9)
                self.link.send(Ping(nonce))
            await asyncio.wait({self.lost}, timeout=check_s)
            listened_ns = min(self._clock.now_ns() - now_ns, int(2e9 * check_s))
            if not self.lost.done() and self._progress.listened(listened_ns):
                self.link.close("hung")
                await self.lost
        return self.lost.result()

    async def stacks(self) -> list[str]:
        """The stacks of its threads, now or when it crashed."""
        return await self._launched.process.stacks() if self._launched is not None else []

    async def shut_down(self, timeout_s: float) -> str:
        """Ask the worker to exit, then kill it if it does not; returns how it ended."""
        self.link.send(Shutdown())
        await asyncio.wait({self.lost}, timeout=timeout_s)
        return await self.reap()

    async def reap(self, patience_s: float = 0.2) -> str:
        """Make sure that the worker is gone; returns how it ended. patience_s: wait before killing it."""
        if not self.ready.cancel() and not self.ready.cancelled():
            self.ready.exception()  # retrieved: nobody may be waiting for it
        self.link.close()
        if self._launched is None:
            return "never started"
        process = self._launched.process
        ended = await process.wait(patience_s)
        if ended is None:
            process.kill()
            ended = await process.wait(KILL_WAIT_S)
        if self._launched.handover is not None:
            self._launched.handover.close()
        return ended or f"still running {KILL_WAIT_S:g} s after SIGKILL"

    def _receive(self, message: Message) -> None:
        self._progress.heard()
        if not self._began.done():
            self._began.set_result(None)
        match message:
            case WarmupProgress():
                self._listener.worker_progress(message)
            case WorkerReady(pass_times=times):
                self._progress.expect(max(times.prefill_ns, times.two_prefills_ns, times.packed_ns, times.whole_ns))
                self._settle(message)
            case WorkerFailed():
                self.failure = message.text
                self._settle(start_error(message.kind, message.text))
            case _:
                if isinstance(message, Pong):
                    self._progress.heard(message.pass_ns)
                elif isinstance(message, ChatReady):
                    self._progress.expect(max(message.step_ns, self._chunk_rows * message.row_ns))
                self._listener.worker_message(message)

    def _settle(self, outcome: WorkerReady | StartError) -> None:
        if self.ready.done():
            return
        if isinstance(outcome, StartError):
            self.ready.set_exception(outcome)
        else:
            self.ready.set_result(outcome)

    def _on_lost(self, reason: str) -> None:
        why = f"; {self.failure}" if self.failure else ""
        self._settle(StartError(f"the worker process ended before it was ready{why}"))
        if not self._began.done():
            self._began.set_result(None)
        if not self.lost.done():
            self.lost.set_result(reason)


async def _listen(future: asyncio.Future[Any], limit_s: float) -> float:
    """Wait for a future; returns the waiting time, without times in which this process itself was suspended."""
    loop = asyncio.get_running_loop()
    listened_s = 0.0
    while not future.done() and listened_s < limit_s:
        begun_s = loop.time()
        await asyncio.wait({future}, timeout=min(CHECK_S, limit_s - listened_s))  # wait_for may lose a cancellation
        listened_s += min(loop.time() - begun_s, 2 * CHECK_S)
    return listened_s


class Supervisor:
    """Keeps one worker running or starting, and reports every change to the listener."""

    def __init__(
        self, launch: Launch, clock: Clock, config: ServiceConfig, listener: WorkerListener, log: EventLog
    ) -> None:
        self._launch = launch
        self._clock = clock
        self._config = config
        self._timing = config.timing
        self._listener = listener
        self._log = log
        self._losses = RollingCount(config.timing.crash_limit, int(config.timing.crash_window_s * 1e9))
        self._limits = StartLimits(config.timing.worker_start_s)
        self._life: WorkerLife | None = None
        self._task: VitalTask | None = None
        self._no_graphs: tuple[str, ...] = ()
        self.plugin = ""
        """The plug-in that brings the policy's family, for messages; "" = none."""

    @property
    def writable(self) -> bool:
        """True if a frame sent now leaves at once."""
        return self._life is not None and self._life.link.writable

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings that the system did not permit for the present worker."""
        return (*self._no_graphs, *(self._life.warnings if self._life is not None else ()))

    def send(self, message: Message) -> None:
        """Queue a message for the present worker, if any."""
        if self._life is not None:
            self._life.link.send(message)

    async def start(self) -> WorkerReady:
        """Start the first worker; StartError if it fails. Later ones are started as needed."""
        ready = await self._start_one()
        self._task = VitalTask("worker-supervisor", self._keep(), self._log, self._listener.worker_fault)
        return ready

    async def stop(self, timeout_s: float) -> None:
        """End the worker: gracefully if it serves, at once if it is starting."""
        if self._task is not None:
            await self._task.stop()
        life, self._life = self._life, None
        if life is not None:
            ended = await (life.shut_down(timeout_s) if life.serving else life.reap())
            self._log.event("worker_stopped", ended=ended)

    async def _start_one(self) -> WorkerReady:
        """A worker whose passes could not be captured is replaced by one without graphs, unless they are required."""
        try:
            return await self._start_life()
        except CaptureError as error:
            if self._config.graphs == "on":
                raise
            self._no_graphs = (f"{error.text}; passes run without graphs",)
            self._listener.worker_without_graphs()
            return await self._start_life()

    async def _start_life(self) -> WorkerReady:
        life = self._life = WorkerLife(self._launch, self._clock, self._config, self._listener, self.plugin)
        try:
            ready = await life.start(self._limits)
            self._listener.worker_ready(ready)
        except StartError as error:
            ended = await life.reap()
            self._log.event("worker_failed", error=type(error).__name__, text=error.text, ended=ended)
            raise
        for text in (*self.warnings, *ready.warnings):
            self._log.event("warning", text=text)
        self._log.event(
            "worker_ready",
            device=ready.device,
            model=ready.model_fingerprint[:12],
            memory=ready.memory,
            family=ready.family,
            plugin=ready.plugin,
        )
        return ready

    async def _keep(self) -> None:
        while self._life is not None:
            cause = await self._life.watch()
            self._listener.worker_lost(cause)
            ended, stacks = await self._end_lost(self._life, hung=cause == "hung")
            failure = {"text": self._life.failure} if self._life.failure else {}
            self._log.event("worker_lost", cause=cause, ended=ended, stacks=stacks, **failure)
            if not await self._replace(self._life.failure or cause):
                await asyncio.Event().wait()  # the service ends

    async def _end_lost(self, life: WorkerLife, *, hung: bool) -> tuple[str, list[str]]:
        """End a lost worker; returns how it ended and its stacks (requested, or left by a crash)."""
        if hung:
            stacks = await life.stacks()
            return await life.reap(0), stacks
        ended = await life.reap()
        return ended, await life.stacks()

    async def _replace(self, why: str) -> bool:
        """Start another worker, within the crash limit; False if that is exceeded."""
        backoff_s = BACKOFF_S
        while not self._losses.exceeded(self._clock.now_ns()):
            try:
                await self._start_one()
                return True
            except StartError as error:
                why = error.text
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
        losses, window_s = self._timing.crash_limit + 1, self._timing.crash_window_s
        self._listener.worker_fault(f"{losses} workers were lost within {window_s:g} s; last cause: {why}")
        return False
