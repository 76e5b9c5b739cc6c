"""What control owes its children, and what it keeps for them."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from edgeflow.ipc.packets import close_all, seal
from edgeflow.service.children import processes as family_module
from edgeflow.service.children.launch import ChildRole, LaunchedChild
from edgeflow.service.children.messages import (
    AccessPolicy,
    Act,
    ActRejected,
    ChatSocket,
    RequestSocket,
    SavedState,
    SaveState,
)
from edgeflow.service.children.processes import RETRY_TICKS, ChildProcesses
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow_client.clock import ManualClock
from tests.ipc.test_sealed import full_table
from tests.service.children.test_single_actions import ACT


class ListeningChild:
    """A supervisor whose child reads only if `reads`."""

    def __init__(self, name: str) -> None:
        self.name, self.is_running, self.reads = name, True, True
        self.messages: list[Any] = []

    def send(self, message: Any, descriptors: Any = ()) -> bool:
        if self.reads:
            self.messages.append(message)
        return self.reads

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


class Tokens:
    entries = None


async def never(_: ChildRole) -> LaunchedChild:
    raise AssertionError("no child is started here")


@pytest.fixture
def made() -> Iterator[tuple[ChildProcesses, ListeningChild]]:
    clock = ManualClock()
    log = EventLog(clock, io.StringIO())
    processes = ChildProcesses(
        [],
        never,
        actions=lambda: None,  # type: ignore[arg-type,return-value]
        robots=None,  # type: ignore[arg-type]
        operators=None,  # type: ignore[arg-type]
        watching=None,  # type: ignore[arg-type]
        health=Health(),
        tokens=Tokens(),  # type: ignore[arg-type]
        tls=None,
        metrics=ProcessMetrics(),
        models=list,
        inputs=lambda: None,
        clock=clock,
        log=log,
    )
    chat = ListeningChild("chat")
    processes._supervisors = {"chat": chat}  # type: ignore[dict-item]
    yield processes, chat


def keep(processes: ChildProcesses, chat: ListeningChild, key: str, data: bytes) -> None:
    processes.child_message(chat, SaveState(key), [seal(data)])  # type: ignore[arg-type]


def ticks(processes: ChildProcesses, count: int) -> None:
    for _ in range(count):
        processes.tick()


def test_failed_sends_to_a_child_are_retried_once_per_second(made: tuple[ChildProcesses, ListeningChild]):
    processes, chat = made
    keep(processes, chat, "arm", b"data")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        chat.reads = False
        processes._handover = ours
        processes.child_started(chat)  # type: ignore[arg-type]
        ticks(processes, RETRY_TICKS)
        chat.reads, chat.is_running = True, False
        ticks(processes, RETRY_TICKS)
        assert not chat.of(AccessPolicy)  # nobody is there
        chat.is_running = True
        ticks(processes, RETRY_TICKS - 1)
        assert not chat.of(AccessPolicy)
        ticks(processes, RETRY_TICKS + 1)
        assert [len(chat.of(kind)) for kind in (AccessPolicy, SavedState, ChatSocket)] == [1, 1, 1]


def test_a_socket_to_the_worker_is_made_once_there_are_descriptors(made: tuple[ChildProcesses, ListeningChild]):
    processes, chat = made
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with full_table():
            processes.worker_launched(ours)
        assert not chat.of(ChatSocket)
        ticks(processes, RETRY_TICKS)
        assert len(chat.of(ChatSocket)) == 1
        data, descriptors, _, _ = socket.recv_fds(theirs, 16, 4)
        assert (data, len(descriptors)) == (b"c", 1)
        close_all(descriptors)


def test_a_chat_front_that_lost_its_socket_gets_one_per_second(made: tuple[ChildProcesses, ListeningChild]):
    processes, chat = made
    ours, theirs = socket.socketpair()
    with ours, theirs:
        processes.worker_launched(ours)
        for seconds in range(3):
            for _ in range(5):
                processes.child_message(chat, RequestSocket(), [])  # type: ignore[arg-type]
            assert len(chat.of(ChatSocket)) == 1 + seconds
            ticks(processes, RETRY_TICKS)
        _, descriptors, _, _ = socket.recv_fds(theirs, 16, 8)
        close_all(descriptors)


def test_empty_data_is_no_longer_kept(made: tuple[ChildProcesses, ListeningChild]):
    processes, chat = made
    keep(processes, chat, "arm", b"data")
    keep(processes, chat, "arm", b"")
    processes.child_started(chat)  # type: ignore[arg-type]
    assert not chat.of(SavedState)


def test_an_observation_whose_pixels_have_no_room_is_rejected(made: tuple[ChildProcesses, ListeningChild]):
    processes, _ = made
    gateway = ListeningChild("gateway")
    processes.child_message_lost(gateway, ACT)  # type: ignore[arg-type]
    (rejected,) = gateway.messages
    assert isinstance(ACT, Act) and isinstance(rejected, ActRejected)
    assert (rejected.request, rejected.code) == (ACT.request, "RESOURCE_EXHAUSTED")


async def test_a_child_that_cannot_start_does_not_wait_for_the_other():
    other = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        await other

    async def fails() -> None:
        raise RuntimeError("cannot start")

    with pytest.raises(RuntimeError):
        await family_module._start_all([waits(), fails()])
    assert other.cancelled()
