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
from edgeflow.service.children import keeper as keeper_module
from edgeflow.service.children.keeper import Keeper
from edgeflow.service.children.launch import LaunchedChild
from edgeflow.service.children.messages import (
    CODING,
    ActCancel,
    Beat,
    ChildFailed,
    ChildMessage,
    Drain,
    Drained,
    LogEvent,
    ServiceState,
    Serving,
)
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
    """The listener and launcher of a keeper, and the children that it launched."""

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

    def child_started(self, keeper: Keeper) -> None:
        self.started += 1
        keeper.send(STATE)

    def child_message(self, keeper: Keeper, message: Any, descriptors: list[int]) -> None:
        close_all(descriptors)
        self.messages.append(message)

    def child_message_lost(self, keeper: Keeper, message: Any) -> None:
        self.messages.append(message)

    def child_lost(self, keeper: Keeper) -> None:
        self.lost += 1


@dataclass
class KeptChildren:
    """A keeper, its children and its log."""

    keeper: Keeper
    family: Children
    log: io.StringIO

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == name]


@contextlib.asynccontextmanager
async def keeping(clock: Any = None) -> AsyncIterator[KeptChildren]:
    """A keeper whose first child serves."""
    family, log = Children(), io.StringIO()
    clock = clock or MonotonicClock()
    keeper = Keeper("gateway", family.launch, listener=family, clock=clock, log=EventLog(MonotonicClock(), log))
    starting = asyncio.create_task(keeper.start())
    await eventually(lambda: bool(family.children))
    family.newest.say(Serving())
    await starting
    task = asyncio.create_task(keeper.keep())
    try:
        yield KeptChildren(keeper, family, log)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.stop()
        for child in family.children:
            child.packets.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keeper_module, "BACKOFF_S", 0.01)
    monkeypatch.setattr(keeper_module, "CHECK_S", 0.005)
    yield


async def test_a_child_that_ends_is_replaced_and_told_what_it_must_know():
    async with keeping() as kept:
        first = kept.family.newest
        assert first.heard() == STATE
        first.exit()
        await eventually(lambda: len(kept.family.children) == 2)
        assert kept.family.newest.heard() == STATE
        assert not kept.keeper.serving
        kept.family.newest.say(Serving())
        await eventually(lambda: kept.keeper.serving)
        assert (kept.family.lost, kept.keeper.restarts) == (1, 1)
        (lost,) = kept.events("child_lost")
        assert (lost["child"], lost["cause"], lost["ended"]) == ("gateway", "eof", "exit code 1")


async def test_a_child_that_shows_no_sign_of_life_is_killed_and_replaced():
    clock = ManualClock()
    async with keeping(clock) as kept:
        first = kept.family.newest
        kept.keeper._life.progress.listened(keeper_module.SILENT_NS)  # type: ignore[union-attr]
        clock.advance_ns(10_000_000)
        first.say(Beat())
        await asyncio.sleep(0.02)
        assert first.ended is None  # the beat counts
        kept.keeper._life.progress.listened(keeper_module.SILENT_NS + 1)  # type: ignore[union-attr]
        await eventually(lambda: len(kept.family.children) == 2)
        assert first.ended == "signal SIGKILL"
        assert kept.events("child_lost")[0]["cause"] == "hung"


@pytest.mark.parametrize("foreign", [b"\xc1", CODING.encode(STATE)[0]], ids=["no message", "a message of control's"])
async def test_a_child_that_breaks_the_protocol_is_replaced(foreign: bytes):
    async with keeping() as kept:
        os.write(kept.family.newest.packets.fileno(), foreign)
        await eventually(lambda: len(kept.family.children) == 2)
        assert kept.events("child_lost")[0]["cause"] == "protocol"


async def test_children_that_cannot_be_launched_are_tried_again():
    async with keeping() as kept:
        kept.family.reject = True
        kept.family.newest.exit()
        await eventually(lambda: len(kept.events("child_failed")) >= 2)
        kept.family.reject = False
        await eventually(lambda: len(kept.family.children) == 2)


@pytest.mark.parametrize(
    ("last", "error"), [(ChildFailed("ConfigError", "chat.slots: x"), ConfigError), (None, StartError)]
)
async def test_a_first_child_that_cannot_serve_is_an_error(last: ChildMessage | None, error: type[Exception]):
    family = Children()
    keeper = Keeper(
        "chat", family.launch, listener=family, clock=MonotonicClock(), log=EventLog(MonotonicClock(), io.StringIO())
    )
    starting = asyncio.create_task(keeper.start())
    await eventually(lambda: bool(family.children))
    if last is not None:
        family.newest.say(last)
    else:
        family.newest.exit()
    with pytest.raises(error):
        await starting
    family.newest.packets.close()


async def test_drain_waits_for_the_child_but_not_for_ever():
    async with keeping() as kept:
        child = kept.family.newest
        child.heard()
        draining = asyncio.create_task(kept.keeper.drain(60_000))
        await eventually(lambda: child.heard() == Drain(60_000))
        child.say(Drained())
        await draining
        await kept.keeper.drain(1)  # answered before
        kept.keeper._life.drained.clear()  # type: ignore[union-attr]
        await kept.keeper.drain(1)


async def test_lines_of_a_child_carry_its_name_and_cannot_pretend_to_be_others():
    async with keeping() as kept:
        kept.family.newest.say(LogEvent("incident", json.dumps({"process": "control", "event": "x", "incident": "1"})))
        kept.family.newest.say(LogEvent("bad", "not json"))
        kept.family.newest.say(LogEvent("n" * 65, "{}"))
        kept.family.newest.say(ActCancel(1))
        await eventually(lambda: kept.family.messages == [ActCancel(1)])
        (line,) = kept.events("incident")
        assert (line["process"], line["incident"]) == ("gateway", "1")
        assert len(kept.log.getvalue().splitlines()) == 1


async def test_a_child_that_beats_but_never_serves_is_replaced():
    clock = ManualClock()
    family = Children()
    keeper = Keeper("chat", family.launch, listener=family, clock=clock, log=EventLog(clock, io.StringIO()))
    starting = asyncio.create_task(keeper.start())
    await eventually(lambda: bool(family.children))
    keeper._life.start.listened(60_000_000_000)  # type: ignore[union-attr]
    await asyncio.sleep(0.02)
    assert not starting.done()
    while not starting.done():
        clock.advance_ns(1_000_000)
        with contextlib.suppress(OSError):
            family.newest.packets.send(Beat())
        await asyncio.sleep(0.001)
    with pytest.raises(StartError, match="hung"):
        await starting
    family.newest.packets.close()


async def test_a_start_that_exceeds_its_limit_doubles_the_next_one():
    async with keeping(ManualClock()) as kept:
        for limit_s in (5, 10, 20, 30):
            kept.family.newest.exit()
            count = len(kept.family.children)
            await eventually(lambda count=count: len(kept.family.children) == count + 1)
            life = kept.keeper._life
            assert life is not None and life.progress.deadline_ns == limit_s * 1_000_000_000
            life.end("hung")


async def test_no_child_is_started_while_the_service_drains():
    async with keeping() as kept:
        draining = asyncio.create_task(kept.keeper.drain(60_000))
        await eventually(lambda: kept.family.newest.heard() == Drain(60_000))
        kept.family.newest.exit()
        await draining
        await eventually(lambda: kept.family.lost == 1)
        await asyncio.sleep(0.05)
        assert len(kept.family.children) == 1


async def test_a_mistake_of_the_keeper_s_is_logged_and_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper_module, "LONGEST_BACKOFF_S", 0.01)
    async with keeping() as kept:
        kept.family.broken = True
        kept.family.newest.exit()
        await eventually(lambda: len(kept.events("incident")) >= 2)
        kept.family.broken = False
        await eventually(lambda: len(kept.family.children) == 2)


async def test_odd_lines_of_a_child_cost_neither_the_child_nor_the_log():
    async with keeping() as kept:
        child = kept.family.newest
        child.say(LogEvent("deep", "[" * 16000))
        child.say(LogEvent("Bad name", "{}"))
        for number in range(100):
            child.say(LogEvent("x" + chr(97 + number // 26) + chr(97 + number % 26), "{}"))
        child.say(ActCancel(1))
        await eventually(lambda: kept.family.messages == [ActCancel(1)])
        assert len(kept.log.getvalue().splitlines()) == 64
        assert len(kept.family.children) == 1


async def test_a_child_that_floods_control_is_replaced():
    async with keeping(ManualClock()) as kept:
        child = kept.family.newest
        for _ in range(600):
            await eventually(lambda: child.packets.send(Beat()) or len(kept.family.children) == 2)
        await eventually(lambda: len(kept.family.children) == 2)
        assert kept.events("child_lost")[0]["cause"] == "protocol"
