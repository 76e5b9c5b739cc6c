"""Control's children as one: the gateway and the chat front, what they are given, and what they ask."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from edgeflow.contract import PolicyInputs
from edgeflow.ipc.packets import close_all, read_sealed, seal
from edgeflow.service.children.keeper import Keeper
from edgeflow.service.children.launch import ChildRole, LaunchChild
from edgeflow.service.children.messages import (
    AccessPolicy,
    Act,
    ActCancel,
    Certificates,
    ChatSocket,
    FromRobots,
    Keep,
    KeptChat,
    MetricsSnapshot,
    Models,
    ObserveRobot,
    ServiceState,
    ToChild,
    WantSocket,
    no_room,
)
from edgeflow.service.children.robots import RobotSessions
from edgeflow.service.children.single_actions import SingleActions
from edgeflow.service.children.start import CHAT, GATEWAY, ROBOTS
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import TokensFile, write_entries
from edgeflow.service.security.tls import Tls
from edgeflow_client.clock import Clock
from edgeflow_client.errors import WorkerError

STATE_TICKS = 10  # of control's ticker between repetitions of the state
RETRY_TICKS = 50  # of control's ticker, between attempts to send what could not be sent
MAX_KEPT = 32
MAX_KEPT_BYTES = 1 << 20
HAND_OVER = b"c"


class ChildProcesses:
    """Keeps the children; runs on the loop.

    models: control's entries in /v1/models. inputs: what the policy needs, None while no worker is ready.
    """

    def __init__(
        self,
        roles: Iterable[ChildRole],
        launch: LaunchChild,
        *,
        actions: Callable[[], SingleActions],
        robots: RobotSessions,
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
        self._health = health
        self._tokens = tokens
        self._tls = tls
        self._models = models
        self._inputs = inputs
        self._snapshots = _Snapshots(metrics)
        self._keepers = {
            role.name: Keeper(role.name, partial(launch, role), listener=self, clock=clock, log=log) for role in roles
        }
        self._kept: dict[str, bytes] = {}
        self._handover: socket.socket | None = None
        self._owed: dict[tuple[str, str], Callable[[], bool]] = {}  # by child: what could not be sent to it yet
        self._log = log
        self._ticks = 0

    async def start(self, keep: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        """Start every child and wait until all serve; StartError if one cannot. keep: runs a task that must live."""
        self._health.watch(lambda _: self.say_state())
        await _start_all(keeper.start() for keeper in self._keepers.values())
        for name, keeper in self._keepers.items():
            keep(f"{name}-keeper", keeper.keep())

    async def drain(self, deadline_ms: int) -> None:
        """Have all children reject new work and finish the rest."""
        await _all(keeper.drain(deadline_ms) for keeper in self._keepers.values())

    async def stop(self) -> None:
        """Kill all children, once their tasks are stopped; idempotent."""
        await _all(keeper.stop() for keeper in self._keepers.values())

    # Calls of the service.

    def tick(self) -> None:
        """Repeat the state, and write a part of the next snapshot."""
        self._ticks += 1
        if self._ticks % STATE_TICKS == 0:
            self.say_state()
        if self._ticks % RETRY_TICKS == 0:
            for (name, what), send in list(self._owed.items()):
                if self._keepers[name].lives:
                    self._owe(self._keepers[name], what, send)
        text = self._snapshots.step()
        if text is not None and (gateway := self._keepers.get(GATEWAY)) is not None:
            _send_sealed(gateway, MetricsSnapshot("control"), text)
            self.models_changed()

    def say_state(self) -> None:
        """Send the state of the service to every child."""
        state = ServiceState(state=self._health.state.value, live=self._health.live, ready=self._health.ready)
        for keeper in self._keepers.values():
            keeper.send(state)

    def models_changed(self) -> None:
        """Send control's entries in /v1/models, and what the policy needs, to the processes that read observations."""
        models = json.dumps(self._models()).encode()
        for name in (GATEWAY, ROBOTS):
            if (keeper := self._keepers.get(name)) is not None:
                _send_sealed(keeper, Models(self._inputs()), models)

    def credentials_changed(self) -> None:
        """Send the tokens and certificates in force to every child."""
        for keeper in self._keepers.values():
            self._give(keeper)

    def worker_launched(self, handover: socket.socket | None) -> None:
        """Connect the chat front to a new worker. handover: where the worker expects chat's sockets."""
        self._handover = handover
        if (chat := self._keepers.get(CHAT)) is not None:
            self._connect_chat(chat)

    # The keepers' listener.

    def child_started(self, keeper: Keeper) -> None:
        self._owed = {key: send for key, send in self._owed.items() if key[0] != keeper.name}
        self._give(keeper)
        if keeper.name != CHAT:
            self.models_changed()
        else:
            for key, data in self._kept.items():
                self._owe(keeper, f"kept {key}", partial(_send_sealed, keeper, KeptChat(key), data))
            self._connect_chat(keeper)
        keeper.send(ServiceState(state=self._health.state.value, live=self._health.live, ready=self._health.ready))

    def child_message(self, keeper: Keeper, message: Any, descriptors: list[int]) -> None:
        if isinstance(message, Act) and keeper.name in self._actions:
            self._actions[keeper.name].act(keeper, message, descriptors)
            return
        if isinstance(message, FromRobots) and keeper.name == ROBOTS:
            self._robots.take(keeper, message, descriptors)
            return
        try:
            match message:
                case ActCancel() if keeper.name in self._actions:
                    self._actions[keeper.name].cancel(message)
                case MetricsSnapshot() if keeper.name == ROBOTS and (gateway := self._keepers.get(GATEWAY)) is not None:
                    gateway.send(MetricsSnapshot(ROBOTS), descriptors)
                case Keep() if keeper.name == CHAT:
                    self._keep(message, descriptors)
                case WantSocket() if keeper.name == CHAT:  # at most once per second, however often it asks
                    self._owed[keeper.name, "socket"] = partial(_connect, keeper, self._handover)
        finally:
            close_all(descriptors)

    def child_message_lost(self, keeper: Keeper, message: Any) -> None:
        match message:
            case Act():
                keeper.send(no_room(message.request))
            case ObserveRobot():
                self._robots.lost_message(keeper, message)
            case Keep():
                self._log.event("prefix_not_kept", slot=message.key)

    def child_lost(self, keeper: Keeper) -> None:
        if keeper.name in self._actions:
            self._actions[keeper.name].cancel_all()
        if keeper.name == ROBOTS:
            self._robots.lost()

    def _keep(self, message: Keep, descriptors: list[int]) -> None:
        """Keep what a chat front wants its successor to have; control never looks into it."""
        data = read_sealed(descriptors[0], MAX_KEPT_BYTES) if descriptors else b""
        if not data:
            self._kept.pop(message.key, None)
            return
        if len(self._kept) >= MAX_KEPT and message.key not in self._kept:
            raise WorkerError("the chat front keeps too much")
        self._kept[message.key] = data

    def _connect_chat(self, keeper: Keeper) -> None:
        """Connect the chat front to the present worker, if there is one."""
        self._owe(keeper, "socket", partial(_connect, keeper, self._handover))

    def _give(self, keeper: Keeper) -> None:
        """Send a child the tokens and, unless it is chat's, the certificates in force."""
        self._owe(keeper, "tokens", partial(self._give_tokens, keeper))
        if self._tls is not None and keeper.name != CHAT:
            self._owe(keeper, "certificates", partial(_give_certificates, keeper, self._tls))

    def _give_tokens(self, keeper: Keeper) -> bool:
        entries = self._tokens.entries
        return _send_sealed(keeper, AccessPolicy(entries is not None), write_entries(entries or []))

    def _owe(self, keeper: Keeper, what: str, send: Callable[[], bool]) -> None:
        """Send something to a child, now or as soon as it can be sent; its successor gets all anew."""
        if send():
            self._owed.pop((keeper.name, what), None)
        else:
            self._owed[keeper.name, what] = send


class _Snapshots:
    """Writes control's metrics in steps, so that no step takes long."""

    def __init__(self, metrics: ProcessMetrics) -> None:
        self._metrics = metrics
        self._parts: list[bytes] = []
        self._rest: Iterator[bytes] = metrics.text_by_family()

    def step(self) -> bytes | None:
        """Write one more family; returns the whole text after the last one."""
        part = next(self._rest, None)
        if part is not None:
            self._parts.append(part)
            return None
        text, self._parts = b"".join(self._parts), []
        self._rest = self._metrics.text_by_family()
        return text


def _send_sealed(keeper: Keeper, message: ToChild, *parts: bytes) -> bool:
    """Send a message with sealed data; False without memory or descriptors, or when the child does not read."""
    descriptors: list[int] = []
    try:
        descriptors += [seal(part) for part in parts]
        return keeper.send(message, descriptors)
    except OSError:
        return False
    finally:
        close_all(descriptors)


def _give_certificates(keeper: Keeper, tls: Tls) -> bool:
    parts = tls.parts
    return _send_sealed(keeper, Certificates(client_ca=len(parts) > 2), *parts)


def _connect(keeper: Keeper, handover: socket.socket | None) -> bool:
    """Make a socket between chat front and worker, and hand both their ends; False if that is impossible now."""
    if handover is None:
        return True
    try:
        fronts, workers = socket.socketpair()
        with fronts, workers:
            socket.send_fds(handover, [HAND_OVER], [workers.fileno()])
            return keeper.send(ChatSocket(), [fronts.fileno()])
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


async def _all(works: Iterable[Any]) -> None:
    """Run all, and raise the first error once all are done."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
