"""A child's end of the socket to control: what it must take ends it, the rest does not; and its log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeflow.ipc.packets import Packets, close_all, packet_pair, seal
from edgeflow.service.children.child import ChildLog, ControlLink
from edgeflow.service.children.messages import (
    CODING,
    AccessPolicy,
    ChildMessage,
    Drain,
    Heartbeat,
    LogEvent,
    MetricsSnapshot,
)
from tests.ipc.test_sealed import full_table
from tests.service.harness import eventually


class Linked:
    """A child and its control. fails: its handling of every message raises."""

    def __init__(self) -> None:
        self.fails = False
        self.gone = 0
        self.taken: list[Any] = []
        ours, theirs = packet_pair()
        self.control: Packets[ChildMessage] = Packets(ours, CODING)
        self.link = ControlLink(theirs, self._receive, self._go)
        self.link.start()

    def _receive(self, message: Any, descriptors: list[int]) -> None:
        close_all(descriptors)
        if self.fails:
            raise OSError("no descriptors")
        self.taken.append(message)

    def _go(self) -> None:
        self.gone += 1

    def heard(self) -> list[ChildMessage]:
        """The messages to control; EOFError once the socket is closed and all is read."""
        found = []
        while (received := self.control.receive()) is not None:
            found.append(received[0])
        return found

    def tell(self, message: ChildMessage) -> None:
        fd = seal(b"x")
        assert self.control.send(message, [fd])
        close_all([fd])


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[Linked]:
    made = Linked()
    assert made.heard() == [Heartbeat()]
    yield made
    made.link.close()
    made.control.close()


async def test_a_child_that_cannot_take_the_tokens_ends():
    async with linked() as made:
        made.fails = True
        made.tell(AccessPolicy(True))
        await eventually(lambda: made.gone == 1)
        line = made.control.receive()
        assert line and isinstance(line[0], LogEvent)
        with pytest.raises(EOFError):
            made.heard()


async def test_a_child_outlives_other_messages_that_it_cannot_take():
    async with linked() as made:
        made.fails = True
        made.tell(MetricsSnapshot("control"))
        await eventually(lambda: any(isinstance(each, LogEvent) for each in made.heard()))
        made.fails = False
        made.tell(Drain(1))
        await eventually(lambda: made.taken == [Drain(1)])
        assert not made.gone


async def test_without_room_for_descriptors_snapshots_are_skipped_and_tokens_end_the_child():
    async with linked() as made:
        made.tell(MetricsSnapshot("control"))
        with full_table():
            made.link._read()
        assert (made.taken, made.gone) == ([], 0)
        made.tell(AccessPolicy(True))
        with full_table():
            made.link._read()
        assert (made.taken, made.gone) == ([], 1)


async def test_a_child_writes_few_lines_per_second_and_counts_the_rest():
    async with linked() as made:
        now = [0.0]
        log = ChildLog(made.link, lambda: now[0])
        for _ in range(25):
            log.event("auth_failed")
        assert len(made.heard()) == 10
        now[0] = 1.0
        log.event("auth_failed")
        assert made.heard() == [LogEvent("auth_failed", '{"muted": 15}')]
