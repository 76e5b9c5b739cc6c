"""The fork server as control sees it: children from one process, and what happens when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from edgeflow.ipc.packets import Packets
from edgeflow.service.children import forks as forks_module
from edgeflow.service.children.forks import Forks
from edgeflow.service.children.launch import ChildRole, LaunchedChild
from edgeflow.service.children.messages import CODING, AccessPolicy, ChildMessage
from edgeflow.service.observe.log import EventLog
from edgeflow_client.clock import MonotonicClock
from tests.service.harness import config, eventually
from tests.service.processes import comm, descriptors, until_gone


@dataclass
class Made:
    """A fork server and its log; the children's socket is bound to no address that anybody knows."""

    forks: Forks
    role: ChildRole
    log: io.StringIO

    async def child(self) -> LaunchedChild:
        return await self.forks.launch(self.role)

    @property
    def server(self) -> int:
        assert self.forks._server is not None
        return self.forks._server._process.pid

    def lost(self) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == "child_lost"]


@contextlib.asynccontextmanager
async def forking(entry: str = forks_module.ENTRY) -> AsyncIterator[Made]:
    log = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, socket.create_server(("127.0.0.1", 0)) as listener:
        patched.setattr(forks_module, "ENTRY", entry)
        forks = Forks(config(), EventLog(MonotonicClock(), log))
        try:
            yield Made(forks, ChildRole(name="gateway", listener=listener, chat_path="", memory_mb=256), log)
        finally:
            await forks.close()
            await forks.close()  # idempotent


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


async def test_children_come_from_one_server_that_reports_their_ends():
    async with forking() as made:
        first, second = await asyncio.gather(made.child(), made.child())
        server = made.server
        pids = [child.process.pid for child in (first, second)]
        assert comm(server) == "ef-forks"
        await eventually(lambda: {comm(pid) for pid in pids} == {"ef-gateway"})
        assert await first.process.wait(0.01) is None
        os.kill(pids[0], signal.SIGTERM)  # ignored: it is for control
        os.kill(pids[0], signal.SIGABRT)
        assert await first.process.wait(60) == "signal SIGABRT"
        first.process.kill()  # no effect: the number may be another's by now
        second.process.kill()
        assert await second.process.wait(60) == "signal SIGKILL"
        third = await made.child()
        third.sock.close()
        assert await third.process.wait(60) == "exit code 0"  # control is gone, as far as it can see
        assert made.server == server
        fourth = await made.child()
        for each in (first, second, fourth):
            each.sock.close()
    until_gone(server)
    until_gone(fourth.process.pid)


async def test_a_child_says_what_it_has_to_say():
    async with forking() as made:
        child = await made.child()
        packets: Packets[ChildMessage] = Packets(child.sock, CODING)
        assert packets.send(AccessPolicy(False))  # without its descriptor: the child ends
        assert await child.process.wait(60) == "exit code 0"
        packets.close()


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
async def test_a_lost_server_is_replaced_and_its_children_die(stopped: bool):
    async with forking() as made:
        child, server = await made.child(), made.server
        os.kill(server, signal.SIGSTOP if stopped else signal.SIGKILL)
        if stopped:
            child.process.kill()
        assert await child.process.wait(1) == forks_module.WITH_SERVER
        until_gone(child.process.pid)
        again = await made.child()
        assert made.server != server
        assert [line["ended"] for line in made.lost()] == ["signal SIGKILL"]
        for each in (child, again):
            each.sock.close()


async def test_a_server_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forks_module, "ANSWER_S", 0.05)
    async with forking() as made:
        (await made.child()).sock.close()
        server = made.server
        os.kill(server, signal.SIGSTOP)
        with pytest.raises(OSError, match="does not answer"):
            await made.child()
        until_gone(server)


async def test_a_server_that_cannot_load_is_an_error_and_not_for_ever():
    async with forking("tests.service.spawned") as made:
        with pytest.raises(OSError, match="lost"):
            await made.child()


async def test_a_launch_that_is_given_up_leaves_no_child():
    async with forking() as made:
        launching = asyncio.create_task(made.child())
        await eventually(lambda: made.forks._server is not None)
        server = made.server
        launching.cancel()
        await asyncio.gather(launching, return_exceptions=True)
        until_gone(server)


async def test_without_descriptors_no_child_is_launched_and_later_one_is():
    def reject(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptors")

    async with forking() as made:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(made.forks._next, "_make", reject)
            with pytest.raises(OSError, match="no descriptors"):
                await made.child()
        (await made.child()).sock.close()
