"""All children of control: the gateway, the robots' process and the chat front, and the messages for them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from edgeflow.contract import PolicyInputs
from edgeflow.ipc.packets import close_all, read_sealed, seal
from edgeflow.service.children.launch import ChildRole, LaunchChild
from edgeflow.service.children.messages import (
    AccessPolicy,
    Act,
    ActCancel,
    Certificates,
    ChatSocket,
    FromRobots,
    MetricsSnapshot,
    Models,
    ObserveRobot,
    Operate,
    RequestSocket,
    SavedState,
    SaveState,
    ServiceState,
    ToChild,
    Watch,
    no_room,
)
from edgeflow.service.children.operators import SessionOperators
from edgeflow.service.children.robots import RobotSessions
from edgeflow.service.children.single_actions import SingleActions
from edgeflow.service.children.start import CHAT, GATEWAY, ROBOTS
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.children.watching import PageWatch
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import TokensFile, write_entries
from edgeflow.service.security.tls import Tls
from edgeflow_client.clock import Clock
from edgeflow_client.errors import WorkerError

STATE_TICKS = 10  # of control's ticker between repetitions of the state
RETRY_TICKS = 50  # of control's ticker, between attempts to send again
MAX_KEPT = 32
MAX_KEPT_BYTES = 1 << 20
HAND_OVER = b"c"


class ChildProcesses:
    """Supervises the children and answers their messages; runs on the loop.

    models: control's entries in /v1/models. inputs: what the policy needs, None while no worker is ready.
    """

    def __init__(
        self,
        roles: Iterable[ChildRole],
        launch: LaunchChild,
        *,
        actions: Callable[[], SingleActions],
        robots: RobotSessions,
        operators: SessionOperators,
        watching: PageWatch,
        health: Health,
        tokens: TokensFile,
        tls: Tls | None,
        metrics: ProcessMetrics,
        models: Callable[[], list[dict[str, Any]]],
        inputs: Callable[[], PolicyInputs | None],
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._actions = {name: actions() for name in (GATEWAY, ROBOTS)}
        self._robots = robots
        self._operators = operators
        self._watching = watching
        self._health = health
        self._tokens = tokens
        self._tls = tls
        self._models = models
        self._inputs = inputs
        self._snapshots = _Snapshots(metrics)
        self._supervisors = {
            role.name: ChildSupervisor(role.name, partial(launch, role), listener=self, clock=clock, log=log)
            for role in roles
        }
        self._kept: dict[str, bytes] = {}
        self._handover: socket.socket | None = None
        self._unsent: dict[tuple[str, str], Callable[[], bool]] = {}  # by child: sends that failed and are retried
        self._log = log
        self._ticks = 0

    async def start(self, keep: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        """Start every child and wait until all serve; StartError if one cannot. keep: runs a task that must live."""
        self._health.watch(lambda _: self.send_state())
        await _start_all(supervisor.start() for supervisor in self._supervisors.values())
        for name, supervisor in self._supervisors.items():
            keep(f"{name}-supervisor", supervisor.keep())

    async def drain(self, deadline_ms: int) -> None:
        """Tell all children to reject new work and finish the rest."""
        await _gather(supervisor.drain(deadline_ms) for supervisor in self._supervisors.values())

    async def stop(self) -> None:
        """Kill all children. Stop their tasks first; idempotent."""
        await self._operators.close()
        self._watching.stop()
        await _gather(supervisor.stop() for supervisor in self._supervisors.values())

    # Calls of the service.

    def tick(self) -> None:
        """Repeat the state, retry unsent messages, and write a part of the next metrics snapshot."""
        self._ticks += 1
        if self._ticks % STATE_TICKS == 0:
            self.send_state()
        if self._ticks % RETRY_TICKS == 0:
            for (name, what), send in list(self._unsent.items()):
                if self._supervisors[name].is_running:
                    self._send_or_retry(self._supervisors[name], what, send)
        text = self._snapshots.step()
        if text is not None and (gateway := self._supervisors.get(GATEWAY)) is not None:
            _send_sealed(gateway, MetricsSnapshot("control"), text)
            self.models_changed()

    def send_state(self) -> None:
        """Send the state of the service to every child."""
        state = ServiceState(state=self._health.state.value, live=self._health.live, ready=self._health.ready)
        for supervisor in self._supervisors.values():
            supervisor.send(state)

    def models_changed(self) -> None:
        """Send control's entries in /v1/models and the policy's inputs to the processes that read observations."""
        models = json.dumps(self._models()).encode()
        for name in (GATEWAY, ROBOTS):
            if (supervisor := self._supervisors.get(name)) is not None:
                _send_sealed(supervisor, Models(self._inputs()), models)

    def credentials_changed(self) -> None:
        """Send the tokens and certificates in force to every child."""
        for supervisor in self._supervisors.values():
            self._send_credentials(supervisor)

    def worker_launched(self, handover: socket.socket | None) -> None:
        """Connect the chat front to a new worker. handover: the socket over which it receives chat's sockets."""
        self._handover = handover
        if (chat := self._supervisors.get(CHAT)) is not None:
            self._connect_chat(chat)

    # The supervisors' listener.

    def child_started(self, supervisor: ChildSupervisor) -> None:
        self._unsent = {key: send for key, send in self._unsent.items() if key[0] != supervisor.name}
        self._send_credentials(supervisor)
        if supervisor.name != CHAT:
            self.models_changed()
        else:
            for key, data in self._kept.items():
                self._send_or_retry(supervisor, f"kept {key}", partial(_send_sealed, supervisor, SavedState(key), data))
            self._connect_chat(supervisor)
        supervisor.send(ServiceState(state=self._health.state.value, live=self._health.live, ready=self._health.ready))

    def child_message(self, supervisor: ChildSupervisor, message: Any, descriptors: list[int]) -> None:
        if isinstance(message, Act) and supervisor.name in self._actions:
            self._actions[supervisor.name].act(supervisor, message, descriptors)
            return
        if isinstance(message, FromRobots) and supervisor.name == ROBOTS:
            self._robots.take(supervisor, message, descriptors)
            return
        try:
            match message:
                case ActCancel() if supervisor.name in self._actions:
                    self._actions[supervisor.name].cancel(message)
                case MetricsSnapshot() if (
                    supervisor.name == ROBOTS and (gateway := self._supervisors.get(GATEWAY)) is not None
                ):
                    gateway.send(MetricsSnapshot(ROBOTS), descriptors)
                case Operate() if supervisor.name == GATEWAY:
                    self._operators.take(supervisor, message)
                case Watch() if supervisor.name == GATEWAY:
                    self._watching.take(supervisor, message)
                case SaveState() if supervisor.name == CHAT:
                    self._keep(message, descriptors)
                case RequestSocket() if supervisor.name == CHAT:  # at most once per second, however often it asks
                    self._unsent[supervisor.name, "socket"] = partial(_connect, supervisor, self._handover)
        finally:
            close_all(descriptors)

    def child_message_lost(self, supervisor: ChildSupervisor, message: Any) -> None:
        match message:
            case Act():
                supervisor.send(no_room(message.request))
            case ObserveRobot():
                self._robots.lost_message(supervisor, message)
            case SaveState():
                self._log.event("prefix_not_kept", slot=message.key)

    def child_lost(self, supervisor: ChildSupervisor) -> None:
        if supervisor.name in self._actions:
            self._actions[supervisor.name].cancel_all()
        if supervisor.name == ROBOTS:
            self._robots.lost()
        if supervisor.name == GATEWAY:
            self._watching.stop()

    def _keep(self, message: SaveState, descriptors: list[int]) -> None:
        """Store data of a chat front for its successor; control never looks into it."""
        data = read_sealed(descriptors[0], MAX_KEPT_BYTES) if descriptors else b""
        if not data:
            self._kept.pop(message.key, None)
            return
        if len(self._kept) >= MAX_KEPT and message.key not in self._kept:
            raise WorkerError("the chat front keeps too much")
        self._kept[message.key] = data

    def _connect_chat(self, supervisor: ChildSupervisor) -> None:
        """Connect the chat front to the present worker, if there is one."""
        self._send_or_retry(supervisor, "socket", partial(_connect, supervisor, self._handover))

    def _send_credentials(self, supervisor: ChildSupervisor) -> None:
        """Send a child the tokens and, unless it is chat's, the certificates in force."""
        self._send_or_retry(supervisor, "tokens", partial(self._send_tokens, supervisor))
        if self._tls is not None and supervisor.name != CHAT:
            self._send_or_retry(supervisor, "certificates", partial(_send_certificates, supervisor, self._tls))

    def _send_tokens(self, supervisor: ChildSupervisor) -> bool:
        entries = self._tokens.entries
        return _send_sealed(supervisor, AccessPolicy(entries is not None), write_entries(entries or []))

    def _send_or_retry(self, supervisor: ChildSupervisor, what: str, send: Callable[[], bool]) -> None:
        """Send something to a child, now or as soon as possible. A new child gets everything again anyway."""
        if send():
            self._unsent.pop((supervisor.name, what), None)
        else:
            self._unsent[supervisor.name, what] = send


class _Snapshots:
    """Writes control's metrics in steps, so that no step blocks the loop for long."""

    def __init__(self, metrics: ProcessMetrics) -> None:
        self._metrics = metrics
        self._parts: list[bytes] = []
        self._rest: Iterator[bytes] = metrics.text_by_family()

    def step(self) -> bytes | None:
        """Write one more metric family; returns the whole text after the last one."""
        part = next(self._rest, None)
        if part is not None:
            self._parts.append(part)
            return None
        text, self._parts = b"".join(self._parts), []
        self._rest = self._metrics.text_by_family()
        return text


def _send_sealed(supervisor: ChildSupervisor, message: ToChild, *parts: bytes) -> bool:
    """Send a message with sealed data; False without memory or descriptors, or when the child does not read."""
    descriptors: list[int] = []
    try:
        descriptors += [seal(part) for part in parts]
        return supervisor.send(message, descriptors)
    except OSError:
        return False
    finally:
        close_all(descriptors)


def _send_certificates(supervisor: ChildSupervisor, tls: Tls) -> bool:
    parts = tls.parts
    return _send_sealed(supervisor, Certificates(client_ca=len(parts) > 2), *parts)


def _connect(supervisor: ChildSupervisor, handover: socket.socket | None) -> bool:
    """Connect chat front and worker with a new socket pair; False if that is impossible now."""
    if handover is None:
        return True
    try:
        fronts, workers = socket.socketpair()
        with fronts, workers:
            socket.send_fds(handover, [HAND_OVER], [workers.fileno()])
            return supervisor.send(ChatSocket(), [fronts.fileno()])
    except OSError:
        return False


async def _start_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all; the first error ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gather(works: Iterable[Any]) -> None:
    """Run all, and raise the first error once all are done."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
