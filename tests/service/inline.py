"""Children of a service in the loop of the test: the same messages over the same sockets, without processes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from prometheus_client import CollectorRegistry

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.packets import packet_pair
from edgeflow.service.chat.front import ChatProcess
from edgeflow.service.children.launch import ChildRole, LaunchedChild
from edgeflow.service.children.start import CHAT, GATEWAY, ROBOTS, ChildStart
from edgeflow.service.frontends.robots import RobotsFront
from edgeflow.service.gateway.gateway import Gateway

Child = Gateway | RobotsFront | ChatProcess
KINDS: dict[str, type[Child]] = {GATEWAY: Gateway, ROBOTS: RobotsFront, CHAT: ChatProcess}


class InlineChildren:
    """Runs children as tasks and remembers the newest of each role."""

    def __init__(self, settings: ServiceConfig, chat_path: str = "") -> None:
        """chat_path: of a chat front that the test plays."""
        self.newest: dict[str, Child] = {}
        self._settings = settings
        self._chat_path = chat_path

    def registries(self) -> list[CollectorRegistry]:
        return [child.metrics.registry for child in self.newest.values()]

    async def launch(self, role: ChildRole) -> LaunchedChild:
        ours, theirs = packet_pair()
        start = ChildStart(
            role=role.name,
            control=theirs,
            listener=role.listener.dup(),
            chat_path=self._chat_path or role.chat_path,
            config=Path("unused"),
        )
        child = self.newest[role.name] = KINDS[role.name](start, self._settings)
        return LaunchedChild(ours, _Task(asyncio.create_task(child.run(), name=role.name), child))


class _Task:
    """A child in a task."""

    pid = None
    ended = None

    def __init__(self, task: asyncio.Task[int], child: Child) -> None:
        self._task = task
        self._child = child

    def kill(self) -> None:
        self._child.close()

    async def wait(self, timeout_s: float) -> str | None:
        with contextlib.suppress(asyncio.TimeoutError):
            code = await asyncio.wait_for(asyncio.shield(self._task), max(timeout_s, 0.001))
            return f"exit code {code}"
        return None
