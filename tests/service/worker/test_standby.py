"""A worker in reserve: it takes over from one that is lost, and its own loss only makes the next start slower."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from edgeflow.contract import PassTimes
from edgeflow.ipc.messages import Message, Ping, Pong, WarmupProgress, WorkerReady
from edgeflow.service.host.spawn import SpawnedProcess
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker import process, standby
from edgeflow.service.worker.link import WorkerLink
from edgeflow.service.worker.process import Launched, WorkerProcess
from edgeflow.service.worker.standby import Workers
from edgeflow_client.clock import MonotonicClock
from tests.service.harness import config, eventually, serving
from tests.service.processes import ENTRY, Newborn, runs

TIMES = PassTimes(stages=7, prefill_ns=1, two_prefills_ns=2, packed_ns=3, decode_ns=4, decodes_ns=5)


class Reserve:
    """Workers under test, and what their log says."""

    def __init__(self, log: io.StringIO, **settings: object) -> None:
        self._log = log
        self.processes = Newborn()
        self.workers = Workers(config(**settings), lambda: TIMES, EventLog(MonotonicClock(), log), ENTRY)

    async def prepared(self) -> int:
        """The process id of a reserve that is ready."""
        before = len(self._told())
        self.workers.prepare()
        await eventually(lambda: len(self._told()) > before)
        return self._told()[-1]

    def _told(self) -> list[int]:
        return [line["pid"] for line in self.told("worker_standby")]

    def told(self, event: str) -> list[dict]:
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def reserve(**settings: object) -> AsyncIterator[Reserve]:
    made = Reserve(io.StringIO(), **settings)
    try:
        yield made
    finally:
        await made.workers.close()
    assert not made.processes()


def pid_of(launched: Launched) -> int:
    assert isinstance(launched.process, WorkerProcess)
    return launched.process.pid


async def serves(launched: Launched) -> list[type]:
    """What a launched worker says until it answers a ping; then it is ended."""
    heard: list[Message] = []
    link = WorkerLink(heard.append, lambda: None, lambda _: None)
    link.connect(launched.sock)
    link.send(Ping(1))
    await eventually(lambda: any(isinstance(message, Pong) for message in heard))
    launched.process.kill()
    await launched.process.wait(60)
    link.close()
    launched.handover.close()
    await asyncio.sleep(0)
    return [type(message) for message in heard]


def schedulers(pid: int) -> set[int]:
    """The scheduling policies of a process's threads."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(task.name)))
    return found


async def test_the_reserve_begins_when_a_worker_is_wanted():
    async with reserve() as made:
        pid = await made.prepared()
        launched = made.workers.launch()
        assert pid_of(launched) == pid
        ours = os.sched_getscheduler(0)
        with suppress(AssertionError):  # a busy machine ends the idle thread late
            await eventually(lambda: schedulers(pid) == {ours})
        assert schedulers(pid) == {ours}
        assert await serves(launched) == [WarmupProgress, WorkerReady, Pong]
        assert await made.prepared() != pid


async def test_one_that_died_is_replaced_by_a_new_process():
    async with reserve() as made:
        pid = await made.prepared()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        launched = made.workers.launch()  # before the loop could notice
        assert pid_of(launched) != pid
        assert (await serves(launched))[-1] is Pong
        assert not runs(pid)


async def test_its_death_is_noticed_and_another_can_be_had():
    async with reserve() as made:
        pid = await made.prepared()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not runs(pid) and pid not in made.processes())
        assert await made.prepared() != pid


async def test_one_that_dies_is_logged_and_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standby, "BACKOFF_S", 0.01)
    async with reserve() as made:
        pid = await made.prepared()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(made.told("worker_standby")) == 2)
        assert [line["pid"] for line in made.told("standby_lost")] == [pid]


async def test_one_that_is_stopped_while_it_loads_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standby, "BACKOFF_S", 0.01)
    monkeypatch.setattr(standby, "LOAD_S", 1.0)
    monkeypatch.setenv("EDGEFLOW_TEST_LOAD", "stop")
    async with reserve() as made:
        made.workers.prepare()
        (stopped,) = made.processes()
        monkeypatch.setenv("EDGEFLOW_TEST_LOAD", "")
        await eventually(lambda: bool(made.told("worker_standby")))
        assert made.told("standby_lost")[0]["pid"] == stopped
        assert not runs(stopped)


async def test_one_that_cannot_be_started_is_a_warning_and_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standby, "RETRY_S", 0.01)
    failures = iter([OSError(errno.EAGAIN, "no processes"), OSError(errno.ENOMEM, "no memory")])

    def spawn(*given: object) -> SpawnedProcess:
        if (error := next(failures, None)) is not None:
            raise error
        return process.spawn_process(*given)

    monkeypatch.setattr(process, "spawn_process", process.spawn, raising=False)
    monkeypatch.setattr(process, "spawn", spawn)
    async with reserve() as made:
        await made.prepared()
        assert [line["text"] for line in made.told("standby_failed")] == [
            "a worker in reserve cannot be started: no processes"
        ]


async def test_one_that_does_not_begin_is_killed_and_a_worker_starts_cold(checkpoint):
    async with (
        reserve(model=str(checkpoint)) as made,
        serving(checkpoint, made.workers, timing__worker_progress_ms=1_500) as served,
    ):
        (first,) = made.processes()
        pid = await made.prepared()
        robot = served.robot()
        await robot.open()
        os.kill(pid, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await robot.notice("worker_ready")
        await robot.frame(1)
        await robot.action(1)
        (failed,) = served.events("worker_failed")
        assert failed["text"] == "the worker in reserve did not begin within 1.5 s"
        assert not runs(pid)


async def test_one_that_still_loads_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGEFLOW_TEST_LOAD", "hang")
    async with reserve() as made:
        made.workers.prepare()
        (loading,) = made.processes()
        launched = made.workers.launch()
        assert pid_of(launched) != loading
        assert (await serves(launched))[-1] is Pong
        await eventually(lambda: not runs(loading))


async def test_none_where_it_is_not_wanted():
    async with reserve(standby=False) as made:
        made.workers.prepare()
        assert not made.processes()
