"""Supervision of a child process: start, heartbeats, message rates, replacement, drain.

A child never decides about the service.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from edgeflow.ipc.packets import DescriptorsLackingError, Packets, close_all
from edgeflow.service.children.launch import KILL_WAIT_S, LaunchedChild
from edgeflow.service.children.messages import (
    CODING,
    Act,
    ActCancel,
    ChildFailed,
    ChildMessage,
    Drain,
    Drained,
    FromRobots,
    Heartbeat,
    LogEvent,
    MetricsSnapshot,
    Operate,
    RequestSocket,
    SaveState,
    Serving,
    ToChild,
    Watch,
)
from edgeflow.service.errors import start_error
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.timeouts import StartLimits, WorkerSilence
from edgeflow_client.clock import Clock
from edgeflow_client.errors import StartError, WorkerError

MAX_PER_S = 500  # messages other than observations; a child sends about a tenth of this
MAX_ACTS_PER_S = 5000  # observations and what sessions of robots need, of which few are open at once
MAX_LOG_BYTES = 16 << 10
MAX_NAMES = 64  # of events, per role
NAME = re.compile(r"[a-z_]{1,64}")
RESERVED = frozenset({"name", "event", "time", "process", "self"})
CHECK_S = 0.1
SILENT_NS = 2_000_000_000  # permitted silence of a serving child
FIRST_START_S = 30.0  # the same for the first one while it starts; later ones: worker/timeouts.py
BEATING = 2  # the limit of a start with heartbeats, as a multiple of the limit without
BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 0.5
PER_TURN = 16  # messages handled before control's loop gets its turn
NS_PER_S = 1_000_000_000
ACTS = (Act, ActCancel, Operate, *FromRobots.__args__)
FORWARDED = (*ACTS, SaveState, RequestSocket, MetricsSnapshot, Watch)  # to the listener
Launch: TypeAlias = Callable[[], Awaitable[LaunchedChild]]  # OSError if that is impossible


class MessageRate:
    """Counts a child's messages by the second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._acts = 0
        self._others = 0

    def count(self, message: object) -> None:
        """Count a message; WorkerError once there are too many within the second."""
        second = self._clock.now_ns() // NS_PER_S
        if second != self._second:
            self._second, self._acts, self._others = second, 0, 0
        if isinstance(message, ACTS):
            self._acts += 1
        else:
            self._others += 1
        if self._acts > MAX_ACTS_PER_S or self._others > MAX_PER_S:
            raise WorkerError("a child sends too many messages")


class ForwardedLines:
    """Writes log lines of the children of one role, under the name of the role."""

    def __init__(self, process: str, log: EventLog) -> None:
        self._process = process
        self._log = log
        self._names: set[str] = set()

    def write(self, line: LogEvent) -> None:
        """Write a line; lines that are too large, are not objects or have an odd name are dropped."""
        values = _values(line)
        if values is None or not NAME.fullmatch(line.name):
            return
        if line.name not in self._names and len(self._names) >= MAX_NAMES:
            return
        self._names.add(line.name)
        kept = {str(key): value for key, value in values.items() if key not in RESERVED}
        self._log.event(line.name, process=self._process, **kept)


def _values(line: LogEvent) -> dict[str, Any] | None:
    if len(line.values) > MAX_LOG_BYTES:
        return None
    try:
        values = json.loads(line.values)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


class ChildListener(Protocol):
    """Receiver of a supervisor's events; all come on the loop."""

    def child_started(self, supervisor: ChildSupervisor) -> None:
        """A child was launched: send the messages that it needs before it serves."""
        ...

    def child_message(self, supervisor: ChildSupervisor, message: Any, descriptors: list[int]) -> None:
        """A message of the child. The listener closes the descriptors."""
        ...

    def child_message_lost(self, supervisor: ChildSupervisor, message: Any) -> None:
        """A message of the child whose descriptors were lost, because this process has no free ones."""
        ...

    def child_lost(self, supervisor: ChildSupervisor) -> None:
        """The child is gone, and will be replaced."""
        ...


class _Life:
    """One child, from its launch to its end. `ended` is set once it is gone, hangs, or breaks the protocol."""

    def __init__(self, launched: LaunchedChild, clock: Clock, limit_s: float) -> None:
        self.packets: Packets[ChildMessage] = Packets(launched.sock, CODING)
        self.process = launched.process
        self.progress = WorkerSilence(int(limit_s * NS_PER_S))
        self.start = WorkerSilence(BEATING * int(limit_s * NS_PER_S))  # from launch to service, heartbeats or not
        self.rate = MessageRate(clock)
        self.since_ns = clock.now_ns()
        self.serving = asyncio.Event()
        self.drained = asyncio.Event()
        self.failed: StartError | None = None
        self.ended = asyncio.Event()
        self.cause = ""

    def end(self, cause: str) -> None:
        if not self.ended.is_set():
            self.cause = cause
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self.packets.fileno())


class ChildSupervisor:
    """Keeps one child running between `start` and `stop`; runs on the loop."""

    def __init__(self, name: str, launch: Launch, *, listener: ChildListener, clock: Clock, log: EventLog) -> None:
        self.name = name
        self.restarts = 0
        self._launch = launch
        self._listener = listener
        self._clock = clock
        self._log = log
        self._life: _Life | None = None
        self._lines = ForwardedLines(name, log)
        self._starts = StartLimits(FIRST_START_S)
        self._backoff_s = BACKOFF_S
        self._draining = False

    @property
    def is_serving(self) -> bool:
        """True if the child accepts requests."""
        return self._life is not None and self._life.serving.is_set() and not self._life.ended.is_set()

    @property
    def is_running(self) -> bool:
        """True if there is a child, whether or not it serves yet."""
        return self._life is not None and not self._life.ended.is_set()

    def send(self, message: ToChild, descriptors: Sequence[int] = ()) -> bool:
        """Send a message to the present child; False if it is gone or does not read."""
        return self._life is not None and self._life.packets.send(message, descriptors)

    async def start(self) -> None:
        """Launch the first child and wait until it serves; StartError if it cannot."""
        try:
            life = await self._begin()
        except OSError as error:
            raise StartError(f"the {self.name} process cannot be started: {error}") from None
        watching = asyncio.create_task(self._watch(life), name=f"{self.name}-start")
        serving = asyncio.create_task(life.serving.wait())
        try:
            await asyncio.wait({watching, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            watching.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)
        if not life.serving.is_set():
            ended = await _reap(life)
            raise life.failed or StartError(f"the {self.name} process ended before it served ({life.cause}; {ended})")

    async def keep(self) -> None:
        """Watch the child and replace it whenever it ends, forever; after `drain`, it is not replaced."""
        while True:
            try:
                await self._keep_one()
            except Exception as error:
                self._log.incident(f"{self.name}-supervisor", error)
                await asyncio.sleep(LONGEST_BACKOFF_S)

    async def _keep_one(self) -> None:
        life = self._life
        if life is not None:
            await self._watch(life)
            await self._record_loss(life)
        self._life = None
        await asyncio.sleep(self._backoff_s)
        if self._draining:
            await asyncio.Event().wait()  # until this task is cancelled: no child follows
        try:
            await self._begin()
            self.restarts += 1
        except OSError as error:
            self._log.event("child_failed", child=self.name, error=type(error).__name__)

    async def _record_loss(self, life: _Life) -> None:
        """Reap a child, and adjust the back-off and the limit of the next start."""
        self._listener.child_lost(self)
        ended = await _reap(life)
        self._log.event("child_lost", child=self.name, cause=life.cause, ended=ended)
        if life.serving.is_set():
            self._backoff_s = BACKOFF_S
            return
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        if life.cause == "hung":
            self._starts.exceeded(reserve=False)

    async def drain(self, deadline_ms: int) -> None:
        """Tell the child to reject new work and finish the rest, and wait for it up to the deadline."""
        self._draining = True
        life = self._life
        if life is None or life.ended.is_set() or not life.packets.send(Drain(deadline_ms)):
            return
        over = [asyncio.create_task(each.wait()) for each in (life.drained, life.ended)]
        await asyncio.wait(over, timeout=deadline_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        for each in over:
            each.cancel()

    async def stop(self) -> None:
        """Kill the child; idempotent. Cancel `keep` first."""
        life, self._life = self._life, None
        if life is not None:
            life.end("stopped")
            await _reap(life)

    async def _begin(self) -> _Life:
        launched = await self._launch()
        life = self._life = _Life(launched, self._clock, self._starts.limit_s(reserve=False))
        asyncio.get_running_loop().add_reader(life.packets.fileno(), self._read, life)
        self._listener.child_started(self)
        return life

    async def _watch(self, life: _Life) -> None:
        """Wait for the end of a child. Its silence counts only while this loop runs."""
        over = asyncio.create_task(life.ended.wait())
        try:
            while not life.ended.is_set():
                now_ns = self._clock.now_ns()
                await asyncio.wait({over}, timeout=CHECK_S)  # `wait_for` may lose a cancellation of this task
                listened_ns = min(self._clock.now_ns() - now_ns, int(2e9 * CHECK_S))
                late = not life.serving.is_set() and life.start.listened(listened_ns)
                if life.progress.listened(listened_ns) or late:
                    life.end("hung")
        finally:
            over.cancel()

    def _read(self, life: _Life) -> None:
        try:
            for _ in range(PER_TURN):
                if life.ended.is_set() or (found := life.packets.receive()) is None:
                    return
                self._take(life, *found)
        except DescriptorsLackingError as lack:
            self._listener.child_message_lost(self, lack.message)
        except EOFError:
            life.end("eof")
        except WorkerError:
            life.end("protocol")
        except Exception as error:
            self._log.incident(f"{self.name}-message", error)

    def _take(self, life: _Life, message: ChildMessage, descriptors: list[int]) -> None:
        life.progress.heard()
        try:
            life.rate.count(message)
        except WorkerError:
            close_all(descriptors)
            raise
        self._handle(life, message, descriptors)

    def _handle(self, life: _Life, message: ChildMessage, descriptors: list[int]) -> None:
        if isinstance(message, FORWARDED):
            self._listener.child_message(self, message, descriptors)
            return
        close_all(descriptors)
        match message:
            case Heartbeat():
                pass
            case Serving():
                self._serves(life)
            case ChildFailed():
                life.failed = start_error(message.kind, message.text)
                life.end("failed")
            case Drained():
                life.drained.set()
            case LogEvent():
                self._lines.write(message)
            case _:
                raise WorkerError("a message of control came from a child")

    def _serves(self, life: _Life) -> None:
        if not life.serving.is_set():
            self._starts.took((self._clock.now_ns() - life.since_ns) / NS_PER_S, reserve=False)
        life.progress = WorkerSilence(SILENT_NS)
        life.serving.set()


async def _reap(life: _Life) -> str:
    """Kill the process and wait for its end; returns how it ended."""
    life.end(life.cause)
    ended = await life.process.wait(0)
    if ended is None:
        life.process.kill()
        ended = await life.process.wait(KILL_WAIT_S)
    life.packets.close()
    return ended or f"still running {KILL_WAIT_S:g} s after SIGKILL"
