"""Real workers in threads of the test's process: loops, engines and chat planes as in the worker process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat.build import build_chat
from edgeflow.engine.chat.loop import ChatLoop
from edgeflow.engine.chat.memory import read_long
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.packets import packet_pair
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.service.chat.front import ChatProcess
from edgeflow.service.worker.process import Launched
from edgeflow.worker.chat_link import ChatLink
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock
from tests.service.harness import RunningService, config, eventually, serving
from tests.service.scripted import ready_message

CPU = torch.device("cpu")
WAIT_S = 30


@dataclass(frozen=True)
class Loaded:
    """Models, and where they came from."""

    policy_path: Path
    path: Path
    policy: OpenVLAPolicy
    chat: ChatModel


def load(policy_path: Path, path: Path) -> Loaded:
    policy = load_openvla(policy_path, torch.float32, CPU)
    return Loaded(policy_path, path, policy, load_chat_model(path, torch.float32, CPU))


class Gate:
    """Lets chat steps through: all of them, or as many as were granted."""

    def __init__(self) -> None:
        self._granted = threading.Semaphore(0)
        self.open = True
        self.steps = 0

    def close(self) -> None:
        self.open = False

    def grant(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._granted.release()

    def release(self) -> None:
        self.open = True
        self._granted.release()

    def passes(self) -> bool:
        """Whether a step may run now."""
        through = self.open or self._granted.acquire(timeout=0.01)
        self.steps += through
        return through


@dataclass
class ThreadLauncher:
    """Starts a worker in a thread for each launch of the supervisor."""

    loaded: Loaded
    settings: ServiceConfig
    gate: Gate = field(default_factory=Gate)
    workers: list[ThreadWorker] = field(default_factory=list)

    def launch(self) -> Launched:
        ours, theirs = socket.socketpair()
        handover, workers = packet_pair()
        self.workers.append(ThreadWorker(self, theirs, (handover, workers)))
        self.workers[-1].thread.start()
        return Launched(ours, self.workers[-1], handover=handover)

    @property
    def worker(self) -> ThreadWorker:
        return self.workers[-1]


class ThreadWorker:
    """One life; a kill closes its socket."""

    def __init__(
        self, launcher: ThreadLauncher, sock: socket.socket, handover: tuple[socket.socket, socket.socket]
    ) -> None:
        self.plane: ChatLoop | None = None
        self._handover, workers = handover
        self._link = ChatLink(workers)
        self._launcher = launcher
        self._channel = BlockingChannel(sock)
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def busy(self) -> bool:
        return self.plane is not None and self.plane.busy

    def kill(self) -> None:
        self._channel.close()

    async def wait(self, timeout_s: float) -> str | None:
        await asyncio.to_thread(self.thread.join, timeout_s)
        if not self.thread.is_alive():
            self._handover.close()
        return None if self.thread.is_alive() else "exit code 0"

    async def stacks(self) -> list[str]:
        return []

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._serve()
        except ChannelClosed:
            pass
        finally:
            self._channel.close()
            self._link.close()

    def _serve(self) -> None:
        loaded, settings, gate = self._launcher.loaded, self._launcher.settings, self._launcher.gate
        clock = MonotonicClock()
        limits = SchedulerLimits(loaded.policy.K, 2, 1000, 0)
        engine = PolicyEngine(loaded.policy, limits.slots, 80)
        memory_gate = read_long(settings.chat, loaded.path, CPU, torch.float32)
        built = build_chat(settings.chat, loaded.chat, "c" * 64, lambda *_: None, gate=memory_gate)
        self.plane = built.loop(settings.chat, clock, self._link.send)
        launch = self.plane.launch
        self.plane.launch = lambda most, turn_ns: launch(most, turn_ns) if gate.passes() else None
        worker = Worker(engine, Scheduler(limits), clock, self._channel.send, chat=self.plane)
        self._channel.send(built.ready())
        self._channel.send(ready_message())
        self._channel.read_forever(worker.inbox.put, worker.inbox.close)
        self._link.serve(worker.inbox, built.ready())
        worker.run()


def chat_of(served: RunningService) -> ChatProcess:
    """The chat front, which runs in the test's loop."""
    chat = served.children.newest["chat"]
    assert isinstance(chat, ChatProcess)
    return chat


async def models_of(http: httpx.AsyncClient, count: int) -> list[str]:
    """The names in the list of models, once there are so many: the gateway asks the chat front every second."""
    names: list[str] = []
    while len(names) < count:
        names = [entry["id"] for entry in (await http.get("/v1/models")).json()["data"]]
        await asyncio.sleep(0.01)
    return names


@contextlib.asynccontextmanager
async def chatting(
    loaded: Loaded, gate: Gate | None = None, incidents: int = 0, **overrides: object
) -> AsyncIterator[tuple[httpx.AsyncClient, RunningService]]:
    """A service with a chat model called `small`, and a client of it; `served.script` is the launcher."""
    chat = {"model": str(loaded.path), "alias": "small", "capacity": 256, "prefill_chunk": 16}
    values = {**{f"chat__{key}": value for key, value in chat.items()}, **overrides}
    settings = config(model=str(loaded.policy_path), alias="demo", **values)
    launcher = ThreadLauncher(loaded, settings, gate or Gate())
    async with (
        serving(loaded.policy_path, launcher, incidents, **values) as served,
        httpx.AsyncClient(base_url=served.http, timeout=WAIT_S) as http,
    ):
        try:
            await eventually(lambda: chat_of(served).queue.ready is not None)
            yield http, served
        finally:
            launcher.gate.release()
