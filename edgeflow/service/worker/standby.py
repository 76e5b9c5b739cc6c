"""Worker processes, with one in reserve that has loaded its libraries (most of a start) and waits for `Begin`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PassTimes
from edgeflow.ipc.channel import pack
from edgeflow.ipc.messages import Begin
from edgeflow.ipc.packets import seal
from edgeflow.service.host.spare import RETRY_S, Spare
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.process import (
    ENTRY,
    KILL_WAIT_S,
    Launched,
    WorkerConnections,
    WorkerProcess,
    cold_arguments,
    launched,
    start_process,
)
from edgeflow.service.worker.timeouts import LEAST_S, TIMES

BACKOFF_S = 1.0  # before a lost reserve is replaced, doubled with each that is lost soon after its start
LONGEST_BACKOFF_S = 30.0
LOAD_S = 60.0  # limit for the first reserve to load; for later ones TIMES the time of the last one


@dataclass(slots=True)
class _Reserve:
    """A worker in reserve."""

    connections: WorkerConnections
    process: WorkerProcess
    ready: bool = False
    """It reported that it has loaded everything."""
    since_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """The time of its start."""
    overdue: asyncio.TimerHandle | None = None
    """Fires if it does not report in time."""

    @property
    def lived_s(self) -> float:
        return asyncio.get_running_loop().time() - self.since_s

    def settle(self) -> None:
        """Stop waiting for its report."""
        if self.overdue is not None:
            self.overdue.cancel()
            self.overdue = None


class Workers:
    """Launches workers for the supervisor. The descriptors for a start are made in advance. Use it on the loop.

    known: pass times measured earlier, if any. entry: the workers' module. passes: the descriptor of the ring in which
    the worker that serves records its passes.
    """

    def __init__(
        self,
        config: ServiceConfig,
        known: Callable[[], PassTimes | None],
        log: EventLog,
        entry: str = ENTRY,
        passes: int | None = None,
    ) -> None:
        self._config = config
        self._known = known
        self._log = log
        self._entry = entry
        self._passes = passes
        self._settings: int | None = None
        self._next = Spare("worker", WorkerConnections.make, log)
        self._next_reserve = Spare("worker in reserve", WorkerConnections.make, log)
        self._reserve: _Reserve | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._backoff_s = BACKOFF_S
        self._load_s = LOAD_S
        self._failing = False

    @property
    def standby(self) -> str:
        """The worker in reserve: ready, preparing or off."""
        if not self._config.standby:
            return "off"
        return "ready" if self._reserve is not None and self._reserve.ready else "preparing"

    def launch(self) -> Launched:
        """Start the worker in reserve if it is ready, otherwise a new process; OSError if that is impossible."""
        known, reserve = self._known(), self._take()
        if reserve is not None and _begins(reserve, known):
            return launched(self._config, reserve.connections, reserve.process, reserve=True)
        self._discard(reserve)
        connections, process = self._start(self._next, cold_arguments(known))
        return launched(self._config, connections, process)

    def without_graphs(self) -> None:
        """Start workers with graphs off from now on."""
        self._change(self._config.model_copy(update={"graphs": "off"}))

    def pin_family(self, name: str) -> None:
        """Start workers with this family from now on, so that they ask no plug-in which one serves."""
        self._change(
            self._config.model_copy(update={"policy": self._config.policy.model_copy(update={"family": name})})
        )

    def _change(self, config: ServiceConfig) -> None:
        self._discard(self._take())
        self._config = config
        self._forget_settings()

    def prepare(self) -> None:
        """Start a worker in reserve, if configured, which loads at idle priority; retry after a failure."""
        self._cancel()
        if self._reserve is not None or not self._config.standby:
            return
        try:
            reserve = self._reserve = _Reserve(*self._start(self._next_reserve, ["--standby"]))
        except OSError as error:
            if not self._failing:
                self._log.event("standby_failed", text=f"a worker in reserve cannot be started: {error.strerror}")
            self._failing = True
            self._prepare_in(RETRY_S)
        else:
            self._failing = False
            loop = asyncio.get_running_loop()
            loop.add_reader(reserve.connections.sock, self._on_message, reserve)
            reserve.overdue = loop.call_later(self._load_s, self._on_overdue, reserve)

    async def close(self) -> None:
        """End the worker in reserve, if any, wait for its end, and release the spare descriptors."""
        self._cancel()
        self._discard(self._take())
        await asyncio.gather(*self._leaving)
        self._next.close()
        self._next_reserve.close()
        self._forget_settings()

    def _forget_settings(self) -> None:
        if self._settings is not None:
            os.close(self._settings)
            self._settings = None

    def _start(self, held: Spare[WorkerConnections], arguments: list[str]) -> tuple[WorkerConnections, WorkerProcess]:
        if self._settings is None:
            self._settings = seal(self._config.model_dump_json().encode())
        connections = held.take()
        try:
            process = start_process(connections, self._settings, self._entry, arguments, self._passes)
        except OSError:
            held.put_back(connections)
            raise
        self._next.fill()
        if self._config.standby:
            self._next_reserve.fill()
        return connections, process

    def _on_message(self, reserve: _Reserve) -> None:
        """Handle the only message of the worker in reserve before it begins, or its end."""
        if not reserve.ready and _has_reported(reserve.connections.sock):
            reserve.ready = True
            reserve.settle()
            self._load_s = max(LEAST_S, TIMES * reserve.lived_s)
            self._log.event("worker_standby", pid=reserve.process.pid)
            return
        self._replace(reserve)

    def _on_overdue(self, reserve: _Reserve) -> None:
        """Replace a worker in reserve that is stopped or hangs while it loads; the next one may take twice the time."""
        self._load_s *= 2
        self._replace(reserve)

    def _replace(self, reserve: _Reserve) -> None:
        if reserve.lived_s > LONGEST_BACKOFF_S:
            self._backoff_s = BACKOFF_S
        self._log.event("standby_lost", pid=reserve.process.pid)
        self._discard(self._take())
        self._prepare_in(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)

    def _prepare_in(self, delay_s: float) -> None:
        self._cancel()
        self._later = asyncio.get_running_loop().call_later(delay_s, self.prepare)

    def _cancel(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _take(self) -> _Reserve | None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            reserve.settle()
            asyncio.get_running_loop().remove_reader(reserve.connections.sock)
        return reserve

    def _discard(self, reserve: _Reserve | None) -> None:
        if reserve is None:
            return
        reserve.connections.sock.close()
        reserve.connections.handover.close()
        reserve.process.kill()
        task = asyncio.create_task(_bury(reserve.process), name="reserve-ends")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _has_reported(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096, socket.MSG_DONTWAIT))  # StandingBy is its only message
    except OSError:
        return False


def _begins(reserve: _Reserve, known: PassTimes | None) -> bool:
    """Send `Begin`; False if it is not ready or has died since."""
    if not reserve.ready:
        return False
    try:
        for buffer in pack(Begin(known)):
            reserve.connections.sock.sendall(buffer)
    except OSError:
        return False
    return True


async def _bury(process: WorkerProcess) -> None:
    await process.wait(KILL_WAIT_S)
