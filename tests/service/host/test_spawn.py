"""Child processes: what they inherit, how they end; and spares made in advance."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeflow.service.host import spare
from edgeflow.service.host.spare import Spare
from edgeflow.service.host.spawn import SpawnedProcess, spawn
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.process import WorkerConnections
from edgeflow_client.clock import MonotonicClock
from tests.service.processes import descriptors, state

ENTRY = "tests.service.spawned"


async def spawned(order: str, extra: int) -> tuple[SpawnedProcess, str]:
    """A process, and what it says."""
    reader, writer = os.pipe()
    process = spawn(ENTRY, (writer, extra), (str(writer), order), {**os.environ, "SPAWNED": "yes"})
    os.close(writer)
    said = await asyncio.to_thread(os.read, reader, 4096)
    os.close(reader)
    return process, said.decode().replace(str([0, 1, 2, *sorted((writer, extra))]), "expected")


async def test_a_process_gets_its_descriptors_and_no_others(tmp_path: Path):
    with (tmp_path / "extra").open("w") as extra, (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)  # as a careless parent of ours may have left it
        process, said = await spawned("exit", extra.fileno())
    assert said == "expected True yes"
    assert await process.wait(60) == "exit code 3"


async def test_its_end_is_known_by_name_and_leaves_nothing(tmp_path: Path):
    with (tmp_path / "extra").open("w") as extra:
        process, _ = await spawned("crash", extra.fileno())
        assert await process.wait(60) == "signal SIGABRT"
        process.kill()  # no effect: the number may be another's by now
        process, _ = await spawned("wait", extra.fileno())
    assert await process.wait(0) is None
    assert await process.wait(0.01) is None
    process.kill()
    assert await process.wait(60) == "signal SIGKILL"
    assert state(process.pid) == "X"


async def test_a_real_time_signal_has_a_number():
    process = spawn(ENTRY, (), ("2", "wait"))
    process.send_signal(signal.SIGRTMIN + 3)
    assert await process.wait(60) == f"signal {signal.SIGRTMIN + 3}"


async def test_one_that_another_waited_for_has_ended_too():
    process = spawn(ENTRY, (), ("2", "exit"))
    await asyncio.to_thread(os.waitpid, process.pid, 0)
    assert await process.wait(60) == "an unknown end"


ORPHANS = """
import asyncio, os
from edgeflow.service.host import spawn

async def main():
    spawn.ORPHANS_S = 0.01
    own = spawn.spawn("tests.service.spawned", (), ("2", "exit"))
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    orphan = os.posix_spawn("/bin/true", ["true"], {})
    reaping = asyncio.create_task(spawn.reaping_orphans())
    await asyncio.sleep(0)
    assert own.ended == "exit code 3", own.ended
    while os.path.exists(f"/proc/{orphan}"):
        await asyncio.sleep(0.01)

asyncio.run(asyncio.wait_for(main(), 30))
"""


def test_orphans_are_reaped_and_children_left_to_who_started_them():
    """In a process apart, whose other children are not taken away."""
    subprocess.run([sys.executable, "-c", ORPHANS], check=True, capture_output=True, timeout=60)


def test_a_kit_that_cannot_be_made_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch):
    def no_pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    before = descriptors()
    WorkerConnections.make().close()
    monkeypatch.setattr(os, "pipe", no_pipe)
    with pytest.raises(OSError, match="too many"):
        WorkerConnections.make()
    assert descriptors() == before


class SpareItem:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


async def test_a_spare_is_made_again_after_its_use_or_as_soon_as_possible(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spare, "RETRY_S", 0.001)
    stream, made = io.StringIO(), asyncio.Event()
    tries: list[int] = []

    def make() -> SpareItem:
        tries.append(1)
        if 2 <= len(tries) <= 4:
            raise OSError(errno.EMFILE, "too many open files")
        if len(tries) > 4:
            made.set()
        return SpareItem()

    one = Spare("worker", make, EventLog(MonotonicClock(), stream))
    one.fill()
    first = one.take()
    one.fill()
    with pytest.raises(OSError, match="too many"):
        one.take()
    await made.wait()
    assert one.take() is not first
    one.put_back(first)
    one.close()
    assert first.closed
    (told,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert told["text"] == "nothing is held for the next worker: too many open files"
