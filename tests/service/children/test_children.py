"""Children as control sees them: started, watched, replaced, drained; none of it is the end of the service."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgeflow.ipc.packets import Packets, close_all, packet_pair
from edgeflow.service.children import supervisor as supervisor_module
from edgeflow.service.children.launch import LaunchedChild
from edgeflow.service.children.messages import (
    CODING,
    ActCancel,
    ChildFailed,
    ChildMessage,
    Drain,
    Drained,
    Heartbeat,
    LogEvent,
    ServiceState,
    Serving,
)
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.observe.log import EventLog
from edgeflow_client.clock import ManualClock, MonotonicClock
from edgeflow_client.errors import ConfigError, StartError
from tests.service.harness import eventually

STATE = ServiceState(state="ready", live=True, ready=True)


@dataclass
class Child:
    """A child whose part the test plays."""

    packets: Packets[ChildMessage]
    ended: str | None = None
    pid: int | None = None

    def say(self, message: ChildMessage) -> None:
        assert self.packets.send(message)

    def heard(self) -> ChildMessage | None:
        found = self.packets.receive()
        if found is None:
            return None
        close_all(found[1])
        return found[0]

    def exit(self) -> None:
        self.ended = "exit code 1"
        self.packets.close()

    def kill(self) -> None:
        self.ended = self.ended or "signal SIGKILL"

    async def wait(self, _: float) -> str | None:
        return self.ended


@dataclass
class Children:
    """The listener and launcher of a supervisor, and the children that it launched."""

    children: list[Child] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    started: int = 0
    lost: int = 0
    reject: bool = False
    broken: bool = False

    async def launch(self) -> LaunchedChild:
        if self.broken:
            raise RuntimeError("a mistake")
        if self.reject:
            raise OSError("no descriptors")
        ours, theirs = packet_pair()
        self.children.append(Child(Packets(theirs, CODING)))
        return LaunchedChild(ours, self.children[-1])

    @property
    def newest(self) -> Child:
        return self.children[-1]

    def child_started(self, supervisor: ChildSupervisor) -> None:
        self.started += 1
        supervisor.send(STATE)

    def child_message(self, supervisor: ChildSupervisor, message: Any, descriptors: list[int]) -> None:
        close_all(descriptors)
        self.messages.append(message)

    def child_message_lost(self, supervisor: ChildSupervisor, message: Any) -> None:
        self.messages.append(message)

    def child_lost(self, supervisor: ChildSupervisor) -> None:
        self.lost += 1


@dataclass
class SupervisedChildren:
    """A supervisor, its children and its log."""

    supervisor: ChildSupervisor
    processes: Children
    log: io.StringIO

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == name]


@contextlib.asynccontextmanager
async def keeping(clock: Any = None) -> AsyncIterator[SupervisedChildren]:
    """A supervisor whose first child serves."""
    processes, log = Children(), io.StringIO()
    clock = clock or MonotonicClock()
    supervisor = ChildSupervisor(
        "gateway", processes.launch, listener=processes, clock=clock, log=EventLog(MonotonicClock(), log)
    )
    starting = asyncio.create_task(supervisor.start())
    await eventually(lambda: bool(processes.children))
    processes.newest.say(Serving())
    await starting
    task = asyncio.create_task(supervisor.keep())
    try:
        yield SupervisedChildren(supervisor, processes, log)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await supervisor.stop()
        for child in processes.children:
            child.packets.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", 0.01)
    monkeypatch.setattr(supervisor_module, "CHECK_S", 0.005)
    yield


async def test_a_child_that_ends_is_replaced_and_gets_state_and_tokens():
    async with keeping() as kept:
        first = kept.processes.newest
        assert first.heard() == STATE
        first.exit()
        await eventually(lambda: len(kept.processes.children) == 2)
        assert kept.processes.newest.heard() == STATE
        assert not kept.supervisor.is_serving
        kept.processes.newest.say(Serving())
        await eventually(lambda: kept.supervisor.is_serving)
        assert (kept.processes.lost, kept.supervisor.restarts) == (1, 1)
        (lost,) = kept.events("child_lost")
        assert (lost["child"], lost["cause"], lost["ended"]) == ("gateway", "eof", "exit code 1")


async def test_a_child_that_shows_no_sign_of_life_is_killed_and_replaced():
    clock = ManualClock()
    async with keeping(clock) as kept:
        first = kept.processes.newest
        kept.supervisor._life.progress.listened(supervisor_module.SILENT_NS)  # type: ignore[union-attr]
        clock.advance_ns(10_000_000)
        first.say(Heartbeat())
        await asyncio.sleep(0.02)
        assert first.ended is None  # the beat counts
        kept.supervisor._life.progress.listened(supervisor_module.SILENT_NS + 1)  # type: ignore[union-attr]
        await eventually(lambda: len(kept.processes.children) == 2)
        assert first.ended == "signal SIGKILL"
        assert kept.events("child_lost")[0]["cause"] == "hung"


@pytest.mark.parametrize("foreign", [b"\xc1", CODING.encode(STATE)[0]], ids=["no message", "a message of control's"])
async def test_a_child_that_breaks_the_protocol_is_replaced(foreign: bytes):
    async with keeping() as kept:
        os.write(kept.processes.newest.packets.fileno(), foreign)
        await eventually(lambda: len(kept.processes.children) == 2)
        assert kept.events("child_lost")[0]["cause"] == "protocol"


async def test_children_that_cannot_be_launched_are_tried_again():
    async with keeping() as kept:
        kept.processes.reject = True
        kept.processes.newest.exit()
        await eventually(lambda: len(kept.events("child_failed")) >= 2)
        kept.processes.reject = False
        await eventually(lambda: len(kept.processes.children) == 2)


@pytest.mark.parametrize(
    ("last", "error"), [(ChildFailed("ConfigError", "chat.slots: x"), ConfigError), (None, StartError)]
)
async def test_a_first_child_that_cannot_serve_is_an_error(last: ChildMessage | None, error: type[Exception]):
    processes = Children()
    supervisor = ChildSupervisor(
        "chat",
        processes.launch,
        listener=processes,
        clock=MonotonicClock(),
        log=EventLog(MonotonicClock(), io.StringIO()),
    )
    starting = asyncio.create_task(supervisor.start())
    await eventually(lambda: bool(processes.children))
    if last is not None:
        processes.newest.say(last)
    else:
        processes.newest.exit()
    with pytest.raises(error):
        await starting
    processes.newest.packets.close()


async def test_drain_waits_for_the_child_but_not_for_ever():
    async with keeping() as kept:
        child = kept.processes.newest
        child.heard()
        draining = asyncio.create_task(kept.supervisor.drain(60_000))
        await eventually(lambda: child.heard() == Drain(60_000))
        child.say(Drained())
        await draining
        await kept.supervisor.drain(1)  # answered before
        kept.supervisor._life.drained.clear()  # type: ignore[union-attr]
        await kept.supervisor.drain(1)


async def test_lines_of_a_child_carry_its_name_and_cannot_pretend_to_be_others():
    async with keeping() as kept:
        kept.processes.newest.say(
            LogEvent("incident", json.dumps({"process": "control", "event": "x", "incident": "1"}))
        )
        kept.processes.newest.say(LogEvent("bad", "not json"))
        kept.processes.newest.say(LogEvent("n" * 65, "{}"))
        kept.processes.newest.say(ActCancel(1))
        await eventually(lambda: kept.processes.messages == [ActCancel(1)])
        (line,) = kept.events("incident")
        assert (line["process"], line["incident"]) == ("gateway", "1")
        assert len(kept.log.getvalue().splitlines()) == 1


async def test_a_child_with_heartbeats_that_never_serves_is_replaced():
    clock = ManualClock()
    processes = Children()
    supervisor = ChildSupervisor(
        "chat", processes.launch, listener=processes, clock=clock, log=EventLog(clock, io.StringIO())
    )
    starting = asyncio.create_task(supervisor.start())
    await eventually(lambda: bool(processes.children))
    supervisor._life.start.listened(60_000_000_000)  # type: ignore[union-attr]
    await asyncio.sleep(0.02)
    assert not starting.done()
    while not starting.done():
        clock.advance_ns(1_000_000)
        with contextlib.suppress(OSError):
            processes.newest.packets.send(Heartbeat())
        await asyncio.sleep(0.001)
    with pytest.raises(StartError, match="hung"):
        await starting
    processes.newest.packets.close()


async def test_a_start_that_exceeds_its_limit_doubles_the_next_one():
    async with keeping(ManualClock()) as kept:
        for limit_s in (5, 10, 20, 30):
            kept.processes.newest.exit()
            count = len(kept.processes.children)
            await eventually(lambda count=count: len(kept.processes.children) == count + 1)
            life = kept.supervisor._life
            assert life is not None and life.progress.deadline_ns == limit_s * 1_000_000_000
            life.end("hung")


async def test_no_child_is_started_while_the_service_drains():
    async with keeping() as kept:
        draining = asyncio.create_task(kept.supervisor.drain(60_000))
        await eventually(lambda: kept.processes.newest.heard() == Drain(60_000))
        kept.processes.newest.exit()
        await draining
        await eventually(lambda: kept.processes.lost == 1)
        await asyncio.sleep(0.05)
        assert len(kept.processes.children) == 1


async def test_a_mistake_of_the_supervisor_is_logged_and_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor_module, "LONGEST_BACKOFF_S", 0.01)
    async with keeping() as kept:
        kept.processes.broken = True
        kept.processes.newest.exit()
        await eventually(lambda: len(kept.events("incident")) >= 2)
        kept.processes.broken = False
        await eventually(lambda: len(kept.processes.children) == 2)


async def test_odd_lines_of_a_child_cost_neither_the_child_nor_the_log():
    async with keeping() as kept:
        child = kept.processes.newest
        child.say(LogEvent("deep", "[" * 16000))
        child.say(LogEvent("Bad name", "{}"))
        for number in range(100):
            child.say(LogEvent("x" + chr(97 + number // 26) + chr(97 + number % 26), "{}"))
        child.say(ActCancel(1))
        await eventually(lambda: kept.processes.messages == [ActCancel(1)])
        assert len(kept.log.getvalue().splitlines()) == 64
        assert len(kept.processes.children) == 1


async def test_a_child_that_floods_control_is_replaced():
    async with keeping(ManualClock()) as kept:
        child = kept.processes.newest
        for _ in range(600):
            await eventually(lambda: child.packets.send(Heartbeat()) or len(kept.processes.children) == 2)
        await eventually(lambda: len(kept.processes.children) == 2)
        assert kept.events("child_lost")[0]["cause"] == "protocol"
