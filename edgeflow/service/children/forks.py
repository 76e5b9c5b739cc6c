"""Control's side of the fork server, and the children it forks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.packets import Packets, close_all, packet_pair, seal
from edgeflow.service.children.launch import KILL_WAIT_S, ChildRole, LaunchedChild, SocketPair
from edgeflow.service.children.start import (
    CHAT,
    FORK_CODING,
    GATEWAY,
    ROBOTS,
    Ended,
    Fork,
    Forked,
    ForkMessage,
    Kill,
    NotForked,
)
from edgeflow.service.host.spare import Spare
from edgeflow.service.host.spawn import SpawnedProcess, spawn, until_ended
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.timeouts import StartLimits
from edgeflow_client.errors import WorkerError

ENTRY = "edgeflow.service.fork_server"
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # a process that forks has one thread
FIRST_LOAD_S = 30.0
ANSWER_S = 1.0  # once it has loaded
WITH_SERVER = "ended with the fork server"


class Forks:
    """Launches children from one fork server, which is replaced if it is lost. Use it on the loop."""

    def __init__(self, config: ServiceConfig, log: EventLog) -> None:
        self._roles = (GATEWAY, ROBOTS, *((CHAT,) if config.chat_path is not None else ()))
        self._every_cpu = bool(config.realtime.front_cpus)  # the server inherits control's CPUs, which children leave
        self._log = log
        self._config = config.model_dump_json().encode()
        self._settings = -1  # descriptor of the sealed configuration
        self._next = Spare("child process", lambda: SocketPair(*packet_pair()), log)
        self._loads = StartLimits(FIRST_LOAD_S)
        self._one = asyncio.Lock()
        self._server: _ForkServer | None = None

    async def launch(self, role: ChildRole) -> LaunchedChild:
        """A new child; OSError if that is impossible."""
        async with self._one:
            server = await self._present()
            pair = self._next.take()
            try:
                message = Fork(role=role.name, chat_path=role.chat_path, memory_mb=role.memory_mb)
                pid = await self._fork(server, message, [pair.theirs.fileno(), role.listener.fileno()])
            except BaseException:
                pair.close()
                raise
            finally:
                self._next.fill()
            pair.theirs.close()
            return LaunchedChild(pair.ours, ForkedProcess(server, pid))

    async def close(self) -> None:
        """End the server and with it every child, and release the spare descriptors; idempotent."""
        if self._server is not None:
            await self._server.reap()
            self._server = None
        self._next.close()
        if self._settings >= 0:
            os.close(self._settings)
            self._settings = -1

    async def _fork(self, server: _ForkServer, message: Fork, descriptors: Sequence[int]) -> int:
        """The process id of a new child. The first answer comes once the server has loaded."""
        if server.answered:
            return await server.fork(message, descriptors, ANSWER_S)
        began_s = time.monotonic()
        try:
            pid = await server.fork(message, descriptors, self._loads.limit_s(reserve=False))
        except TimeoutError:
            self._loads.exceeded(reserve=False)
            raise
        self._loads.took(time.monotonic() - began_s, reserve=False)
        return pid

    async def _present(self) -> _ForkServer:
        """The server; a new one if the last one is lost."""
        server = self._server
        if server is not None and server.is_lost:
            ended = await server.reap()
            self._log.event("child_lost", child="forks", ended=ended)
            server = None
        if server is None:
            server = self._server = self._start()
        return server

    def _start(self) -> _ForkServer:
        if self._settings < 0:
            self._settings = seal(self._config)
        pair = self._next.take()
        arguments = ["--parent", str(os.getpid()), "--fd", str(pair.theirs.fileno())]
        arguments += ["--config", f"/dev/fd/{self._settings}", "--roles", *self._roles]
        arguments += ["--every-cpu"] if self._every_cpu else []
        try:
            process = spawn(ENTRY, (pair.theirs.fileno(), self._settings), arguments, {**os.environ, **ENVIRONMENT})
        except OSError:
            self._next.put_back(pair)
            raise
        pair.theirs.close()
        return _ForkServer(Packets(pair.ours, FORK_CODING), process)


class _ForkServer:
    """A running fork server. is_lost: it has ended, and with it its children."""

    def __init__(self, packets: Packets[ForkMessage], process: SpawnedProcess) -> None:
        self.is_lost = False
        self.answered = False
        self._packets = packets
        self._process = process
        self._answer: asyncio.Future[int] | None = None
        self._ended: dict[int, str] = {}
        asyncio.get_running_loop().add_reader(packets.fileno(), self._read)

    async def fork(self, message: Fork, descriptors: Sequence[int], limit_s: float) -> int:
        """The process id of a new child; OSError if that fails. A server that does not answer in time is killed."""
        if self.is_lost or not self._packets.send(message, descriptors):
            self.end()
            raise ConnectionError("the fork server is lost")
        self._answer = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._answer, limit_s)
        except asyncio.TimeoutError:
            self.end()
            raise TimeoutError("the fork server does not answer") from None
        except asyncio.CancelledError:
            self.end()  # otherwise its late answer would be taken for that of the next request
            raise
        finally:
            self._answer = None
            self.answered = True

    def kill(self, pid: int) -> None:
        """Kill a child."""
        if not self.is_lost and not self._packets.send(Kill(pid)):
            self.end()

    def ended(self, pid: int) -> str | None:
        """How a child ended; None while it runs."""
        return self._ended.get(pid, WITH_SERVER if self.is_lost else None)

    def forget(self, pid: int) -> None:
        """Forget how a child ended."""
        self._ended.pop(pid, None)

    def end(self) -> None:
        """Kill the server; its children die with it."""
        if self.is_lost:
            return
        self.is_lost = True
        asyncio.get_running_loop().remove_reader(self._packets.fileno())
        self._packets.close()
        self._process.kill()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the fork server is lost"))

    async def reap(self) -> str:
        """End the server and wait; returns how it ended."""
        self.end()
        return await self._process.wait(KILL_WAIT_S) or f"still running {KILL_WAIT_S:g} s after SIGKILL"

    def _read(self) -> None:
        try:
            while not self.is_lost and (found := self._packets.receive()) is not None:
                close_all(found[1])
                self._take(found[0])
        except (EOFError, WorkerError):
            self.end()

    def _take(self, message: ForkMessage) -> None:
        match message:
            case Ended():
                self._ended[message.pid] = message.how
            case Forked() | NotForked() if self._answer is not None and not self._answer.done():
                if isinstance(message, Forked):
                    self._answer.set_result(message.pid)
                else:
                    self._answer.set_exception(OSError(message.text))


class ForkedProcess:
    """A child of the fork server."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._how: str | None = None
        self._killed = False

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        if self._how is None and (how := self._server.ended(self.pid)) is not None:
            self._how = how
            self._server.forget(self.pid)
        return self._how

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.ended is None:
            self._killed = True
            self._server.kill(self.pid)

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        if await until_ended(self, timeout_s) is None and self._killed:
            self._server.end()  # it did not kill the child, so that only its own end helps
        return self.ended
