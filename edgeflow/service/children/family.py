"""Control's children as one: the gateway and the chat front, what they are given, and what they ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from edgeflow.clock import Clock
from edgeflow.errors import WorkerError
from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import seal, unseal
from edgeflow.service.children.act_desk import ActDesk
from edgeflow.service.children.keeper import Keeper
from edgeflow.service.children.launch import Launcher
from edgeflow.service.children.messages import (
    Act,
    ActCancel,
    Certificates,
    ChatSocket,
    Keep,
    Kept,
    Models,
    Policy,
    Snapshot,
    State,
    ToChild,
)
from edgeflow.service.children.start import CHAT, GATEWAY
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import TokensFile, write_entries
from edgeflow.service.security.tls import Tls

STATE_TICKS = 10  # of control's ticker between repetitions of the state
MAX_KEPT = 32
MAX_KEPT_BYTES = 1 << 20
HAND_OVER = b"c"


class Family:
    """Keeps the children; runs on the loop. models: control's entries in /v1/models."""

    def __init__(
        self,
        launchers: dict[str, Launcher],
        *,
        desk: ActDesk,
        health: Health,
        tokens: TokensFile,
        tls: Tls | None,
        metrics: ProcessMetrics,
        models: Callable[[], list[dict[str, Any]]],
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._desk = desk
        self._health = health
        self._tokens = tokens
        self._tls = tls
        self._models = models
        self._snapshots = _Snapshots(metrics)
        self._keepers = {
            name: Keeper(name, launcher, listener=self, clock=clock, log=log) for name, launcher in launchers.items()
        }
        self._launchers = launchers
        self._ready = False
        self._kept: dict[str, bytes] = {}
        self._handover: socket.socket | None = None
        self._owed: set[str] = set()  # children that lack the latest tokens or certificates
        self._ticks = 0

    async def start(self, keep: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        """Start every child and wait until all serve; StartError if one cannot. keep: runs a task that must live."""
        self._health.watch(lambda _: self.say_state())
        await _all(keeper.start() for keeper in self._keepers.values())
        for name, keeper in self._keepers.items():
            keep(f"{name}-keeper", keeper.keep())

    async def drain(self, deadline_ms: int) -> None:
        """Have all children refuse new work and finish the rest."""
        await _all(keeper.drain(deadline_ms) for keeper in self._keepers.values())

    async def stop(self) -> None:
        """Kill all children, once their tasks are stopped; idempotent."""
        await _all(keeper.stop() for keeper in self._keepers.values())
        await _all(launcher.close() for launcher in self._launchers.values())

    def pids(self) -> dict[str, int]:
        """Process ids by name, of the children that are processes."""
        found = {name: keeper.pid for name, keeper in self._keepers.items()}
        return {name: pid for name, pid in found.items() if pid is not None}

    # Calls of the service.

    def tick(self) -> None:
        """Repeat the state, and write a part of the next snapshot."""
        self._ticks += 1
        if self._ticks % STATE_TICKS == 0:
            self.say_state()
        for name in list(self._owed):
            self._give(self._keepers[name])
        text = self._snapshots.step()
        if text is not None and (gateway := self._keepers.get(GATEWAY)) is not None:
            _send_sealed(gateway, Snapshot(), text)

    def say_state(self) -> None:
        """Send the state of the service to every child."""
        state = State(state=self._health.state.value, live=self._health.live, ready=self._health.ready)
        for keeper in self._keepers.values():
            keeper.send(state)

    def models_changed(self) -> None:
        """Send control's entries in /v1/models to the gateway."""
        if (gateway := self._keepers.get(GATEWAY)) is not None:
            _send_sealed(gateway, Models(), json.dumps(self._models()).encode())

    def credentials_changed(self) -> None:
        """Send the tokens and certificates in force to every child."""
        for keeper in self._keepers.values():
            self._give(keeper)

    def worker_launched(self, handover: socket.socket | None) -> None:
        """Connect the chat front to a new worker. handover: where the worker expects chat's sockets."""
        self._handover = handover
        if (chat := self._keepers.get(CHAT)) is not None:
            self._connect_chat(chat)

    def prepare(self) -> None:
        """The service is ready: have a spare of every child at hand from now on."""
        self._ready = True
        for launcher in self._launchers.values():
            launcher.prepare()

    # The keepers' listener.

    def child_started(self, keeper: Keeper) -> None:
        self._give(keeper)
        if keeper.name == GATEWAY:
            self.models_changed()
        else:
            for key, data in self._kept.items():
                _send_sealed(keeper, Kept(key), data)
            self._connect_chat(keeper)
        keeper.send(State(state=self._health.state.value, live=self._health.live, ready=self._health.ready))

    def child_message(self, keeper: Keeper, message: Any, descriptors: list[int]) -> None:
        match message:
            case Act() if keeper.name == GATEWAY:
                self._desk.act(keeper, message, descriptors)
                return
            case ActCancel() if keeper.name == GATEWAY:
                self._desk.cancel(message)
            case Keep() if keeper.name == CHAT:
                self._keep(message, descriptors)
        close_all(descriptors)

    def child_serving(self, keeper: Keeper) -> None:
        if self._ready:
            self._launchers[keeper.name].prepare()

    def child_lost(self, keeper: Keeper) -> None:
        if keeper.name == GATEWAY:
            self._desk.cancel_all()

    def _keep(self, message: Keep, descriptors: list[int]) -> None:
        """Keep what a chat front wants its successor to have; control never looks into it."""
        data = bytes(unseal(descriptors[0], MAX_KEPT_BYTES)) if descriptors else b""
        if len(self._kept) >= MAX_KEPT and message.key not in self._kept:
            raise WorkerError("the chat front keeps too much")
        self._kept[message.key] = data

    def _connect_chat(self, keeper: Keeper) -> None:
        """Make a socket between chat front and worker, and hand both their ends."""
        if self._handover is None:
            return
        with contextlib.suppress(OSError):  # the next start of either tries again
            fronts, workers = socket.socketpair()
            with fronts, workers:
                socket.send_fds(self._handover, [HAND_OVER], [workers.fileno()])
                keeper.send(ChatSocket(), [fronts.fileno()])

    def _give(self, keeper: Keeper) -> None:
        """Send a child the tokens and, to the gateway, the certificates; what cannot be sent is owed."""
        entries = self._tokens.entries
        given = _send_sealed(keeper, Policy(entries is not None), write_entries(entries or []))
        if self._tls is not None and keeper.name == GATEWAY:
            parts = self._tls.parts
            given = _send_sealed(keeper, Certificates(client_ca=len(parts) > 2), *parts) and given
        (self._owed.discard if given else self._owed.add)(keeper.name)


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


async def _all(works: Iterable[Any]) -> None:
    """Run all, and raise the first error once all are done."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
