"""Worker processes, and one in reserve: it has loaded its libraries, most of a start, and waits to be told to begin."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from edgeflow.config import ServiceConfig
from edgeflow.ipc.channel import pack
from edgeflow.ipc.messages import Begin
from edgeflow.service.log import EventLog
from edgeflow.service.realtime import settle
from edgeflow.service.worker_process import ENTRY, KILL_WAIT_S, Launched, WorkerProcess, launch_worker, start_process
from edgeflow.types import PassTimes


@dataclass(slots=True)
class _Reserve:
    """ready: it told that it has loaded everything."""

    sock: socket.socket
    process: WorkerProcess
    ready: bool = False


class Workers:
    """`launch` for the supervisor. known: pass times that a worker measured before, if any. entry: their module."""

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
        """The reserve begins, if it is ready; else a new process. On the loop."""
        known, reserve = self._known(), self._take()
        if reserve is None or not _begins(reserve, known):
            self._discard(reserve)
            return launch_worker(self._config, self._entry, known)
        wanted = self._config.realtime
        warnings = settle("worker", reserve.process.pid, wanted.worker_cpus, wanted.worker_priority)
        return Launched(reserve.sock, reserve.process, tuple(warnings))

    def prepare(self) -> None:
        """Have a reserve, if it is wanted: it loads with time that nobody else needs. On the loop."""
        if self._reserve is not None or not self._config.standby:
            return
        reserve = self._reserve = _Reserve(*start_process(self._config, self._entry, ("--standby",)))
        asyncio.get_running_loop().add_reader(reserve.sock, self._told, reserve)

    async def close(self) -> None:
        """No process of ours is left that no supervisor has."""
        self._discard(self._take())
        await asyncio.gather(*self._leaving)

    def _told(self, reserve: _Reserve) -> None:
        """Its one message before it begins, or its end."""
        reserve.ready = _has_told(reserve.sock)
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


def _has_told(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096, socket.MSG_DONTWAIT))
    except OSError:
        return False


def _begins(reserve: _Reserve, known: PassTimes | None) -> bool:
    """Whether it could be told to; it may have died since."""
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
