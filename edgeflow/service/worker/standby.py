"""Worker processes, with one in reserve that has loaded its libraries, most of a start, and waits for `Begin`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from edgeflow.config import ServiceConfig
from edgeflow.ipc.channel import pack
from edgeflow.ipc.messages import Begin
from edgeflow.service.host.realtime import settle
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.process import ENTRY, KILL_WAIT_S, Launched, WorkerProcess, launch_worker, start_process
from edgeflow.types import PassTimes


@dataclass(slots=True)
class _Reserve:
    """A worker in reserve. ready: it reported that everything is loaded."""

    sock: socket.socket
    process: WorkerProcess
    ready: bool = False


class Workers:
    """Launches workers for the supervisor. known: pass times measured earlier, if any. entry: the workers' module."""

    def __init__(
        self, config: ServiceConfig, known: Callable[[], PassTimes | None], log: EventLog, entry: str = ENTRY
    ) -> None:
        self._config = config
        self._known = known
        self._log = log
        self._entry = entry
        self._reserve: _Reserve | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def launch(self) -> Launched:
        """Start the worker in reserve if it is ready, otherwise a new process. Call on the loop."""
        known, reserve = self._known(), self._take()
        if reserve is None or not _begins(reserve, known):
            self._discard(reserve)
            return launch_worker(self._config, self._entry, known)
        wanted = self._config.realtime
        warnings = settle("worker", reserve.process.pid, wanted.worker_cpus, wanted.worker_priority)
        return Launched(reserve.sock, reserve.process, tuple(warnings), reserve.process.handover)

    def prepare(self) -> None:
        """Start a worker in reserve if configured; it loads at idle priority. Call on the loop."""
        if self._reserve is not None or not self._config.standby:
            return
        reserve = self._reserve = _Reserve(*start_process(self._config, self._entry, ("--standby",)))
        asyncio.get_running_loop().add_reader(reserve.sock, self._on_message, reserve)

    async def close(self) -> None:
        """End the worker in reserve, if any, and wait for its end."""
        self._discard(self._take())
        await asyncio.gather(*self._leaving)

    def _on_message(self, reserve: _Reserve) -> None:
        """Handle the only message of the worker in reserve before it begins, or its end."""
        reserve.ready = _has_reported(reserve.sock)
        if reserve.ready:
            self._log.event("worker_standby", pid=reserve.process.pid)
        else:
            self._discard(self._take())

    def _take(self) -> _Reserve | None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            asyncio.get_running_loop().remove_reader(reserve.sock)
        return reserve

    def _discard(self, reserve: _Reserve | None) -> None:
        if reserve is None:
            return
        reserve.sock.close()
        reserve.process.kill()
        task = asyncio.create_task(_bury(reserve.process), name="reserve-ends")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _has_reported(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096, socket.MSG_DONTWAIT))
    except OSError:
        return False


def _begins(reserve: _Reserve, known: PassTimes | None) -> bool:
    """Send `Begin`; False if it is not ready or has died since."""
    if not reserve.ready:
        return False
    try:
        for buffer in pack(Begin(known)):
            reserve.sock.sendall(buffer)
    except OSError:
        return False
    return True


async def _bury(process: WorkerProcess) -> None:
    await process.wait(KILL_WAIT_S)
