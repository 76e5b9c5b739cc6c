"""Worker processes that hang, are stopped, crash, or lose their front."""

from __future__ import annotations

import io
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgeflow.contract import Pace
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.chat_messages import ChatReady
from edgeflow.ipc.messages import (
    OpenSession,
    Ping,
    SessionOpened,
    SubmitFrame,
    WarmupProgress,
    WorkerFailed,
    WorkerReady,
)
from edgeflow.service.observe.log import EventLog
from edgeflow.service.run import run_service
from edgeflow.service.worker import supervisor
from edgeflow.service.worker.supervisor import Supervisor, WorkerLife
from edgeflow.service.worker.timeouts import SLOW_PASSES, StartLimits, WorkerSilence
from edgeflow_client.clock import Clock, ManualClock, MonotonicClock
from edgeflow_client.errors import WorkerError
from tests.service.harness import config, eventually, serving
from tests.service.processes import ENTRY, ProcessLauncher, launch_worker, until_gone
from tests.service.scripted import Script

MS = 1_000_000
SECOND = 1000 * MS


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        ("hang", "in hang"),
        ("hang in c", "in obey"),
        ("stop", "is stopped by a signal"),
    ],
)
async def test_a_hung_worker_is_detected_and_replaced_with_its_stacks_logged(
    checkpoint, monkeypatch, instruction: str, told: str
):
    monkeypatch.setattr(supervisor, "PING_S", 0.05)
    monkeypatch.setattr(supervisor, "CHECK_S", 0.02)
    launcher = ProcessLauncher(config())
    async with serving(checkpoint, launcher, timing__worker_progress_ms=2_000) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1, instruction=instruction)
        await robot.hold("WORKER_LOST")
        await robot.notice("worker_ready")
        await robot.frame(2, instruction="grasp")
        await robot.action(2)
        lost = served.events("worker_lost")
        assert [(event["cause"], event["ended"]) for event in lost] == [("hung", "signal SIGKILL")]
        assert told in "\n".join(lost[0]["stacks"])
        assert len(launcher.pids) == 2


async def test_a_worker_stopped_while_idle_is_noticed_by_its_silence(checkpoint):
    launcher = ProcessLauncher(config())
    async with serving(checkpoint, launcher, timing__worker_progress_ms=1_000) as served:
        robot = served.robot()
        await robot.open()
        stopped = time.monotonic()
        os.kill(launcher.pids[0], signal.SIGSTOP)
        await robot.hold("WORKER_LOST")
        assert time.monotonic() - stopped > 0.5, "a silence, not an end"
        await robot.notice("worker_ready")
        assert [event["cause"] for event in served.events("worker_lost")] == ["hung"]
        await robot.frame(1)
        await robot.action(1)


async def test_a_crash_leaves_its_stack_and_a_failure_its_words_in_the_log(checkpoint):
    launcher = ProcessLauncher(config())
    async with serving(checkpoint, launcher) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1, instruction="crash")
        await robot.notice("worker_ready")
        await robot.frame(2, instruction="fail")
        await robot.notice("worker_ready")
        crashed, failed = served.events("worker_lost")
        assert (crashed["cause"], crashed["ended"]) == ("eof", "signal SIGSEGV")
        assert "in obey" in "\n".join(crashed["stacks"]) and "text" not in crashed
        assert (failed["ended"], failed["text"]) == ("exit code 2", "policy.family: mine failed")


def test_silence_counts_only_while_somebody_listens():
    progress = WorkerSilence(2 * SECOND)
    assert not progress.listened(2 * SECOND)
    assert progress.listened(1)
    progress.heard()
    assert not progress.listened(2 * SECOND)


def test_slow_passes_allow_a_longer_silence_but_one_odd_pass_does_not():
    progress = WorkerSilence(2 * SECOND)
    progress.heard([10 * MS] * 999 + [600 * SECOND])
    assert progress.deadline_ns == 2 * SECOND
    progress.heard([SECOND] * 1000)
    assert progress.deadline_ns == SLOW_PASSES * SECOND
    progress.expect(3 * SECOND)  # measured at start: not forgotten for many quick passes
    progress.heard([MS] * 1000)
    assert progress.deadline_ns == SLOW_PASSES * 3 * SECOND


class SupervisorListener:
    """What a supervisor tells."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.lost: list[str] = []
        self.ready = 0

    def worker_launched(self, handover: object) -> None: ...

    def worker_progress(self, message: WarmupProgress) -> None: ...

    def worker_ready(self, ready: WorkerReady) -> None:
        self.ready += 1

    def worker_message(self, message: object) -> None: ...

    def worker_writable(self) -> None: ...

    def worker_lost(self, cause: str) -> None:
        self.lost.append(cause)

    def worker_without_graphs(self) -> None: ...

    def worker_fault(self, text: str) -> None:
        self.faults.append(text)


async def supervised(
    script: Script, tmp_path: Path, clock: Clock | None = None, **timing
) -> tuple[Supervisor, SupervisorListener]:
    listener, clock = SupervisorListener(), clock or MonotonicClock()
    settings = config(**{f"timing__{key}": value for key, value in timing.items()})
    with (tmp_path / "log").open("a") as stream:
        made = Supervisor(script.launch, clock, settings, listener, EventLog(clock, stream))
        await made.start()
    made._log = EventLog(MonotonicClock(), io.StringIO())
    return made, listener


async def test_a_long_prompt_does_not_count_as_silence():
    life = WorkerLife(Script().launch, MonotonicClock(), config(chat__prefill_chunk=1024), SupervisorListener())
    ready = ChatReady(
        model="chat",
        family="llama",
        model_fingerprint="f",
        images=False,
        length=4096,
        capacity=4096,
        long=None,
        slots=[],
        slot_bytes=0,
        kv_bytes=0,
        step_ns=1_000_000,
        row_ns=2_000_000,
        sampling=[1.0, 1.0, 0.0, 1.0],
        top_k=0,
        numbers="",
    )
    life._receive(ready)
    assert life._progress.deadline_ns == SLOW_PASSES * 1024 * ready.row_ns


async def test_an_idle_worker_is_pinged_within_any_permitted_silence(tmp_path: Path):
    script = Script()
    made, heard = await supervised(script, tmp_path, worker_progress_ms=400)
    await eventually(lambda: sum(isinstance(message, Ping) for message in script.workers[0].seen) > 6)
    assert not heard.lost
    await made.stop(1)


async def test_a_reserve_that_begins_at_the_last_moment_has_begun(monkeypatch):
    async def late(future, limit_s: float) -> float:
        await future
        return limit_s

    monkeypatch.setattr(supervisor, "_listen", late)
    script = Script()
    life = WorkerLife(lambda: replace(script.launch(), reserve=True), MonotonicClock(), config(), SupervisorListener())
    await life.start(StartLimits(60))
    assert life.serving
    await life.shut_down(1)


async def test_more_losses_than_the_budget_are_a_fault(tmp_path: Path):
    script = Script()
    made, heard = await supervised(script, tmp_path)
    for losses in range(1, 5):
        script.worker.kill()
        await eventually(lambda losses=losses: len(heard.lost) == losses)
        if losses < 4:
            await eventually(lambda losses=losses: heard.ready == losses + 1)
    await eventually(lambda: bool(heard.faults))
    assert heard.faults == ["4 workers were lost within 300 s; last cause: eof"]
    assert len(script.workers) == 4
    await made.stop(1)


async def test_losses_are_forgotten_after_the_window(tmp_path: Path):
    script = Script()
    clock = ManualClock()
    made, heard = await supervised(script, tmp_path, clock, crash_limit=1, crash_window_s=5)
    for losses in range(1, 4):
        script.worker.kill()
        await eventually(lambda losses=losses: heard.ready == losses + 1)
        clock.advance_ns(6 * SECOND)
    assert not heard.faults
    await made.stop(1)


async def test_starts_that_fail_count(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.001)
    script = Script()
    made, heard = await supervised(script, tmp_path)
    script.fail = WorkerFailed("StartError", "no device")
    script.worker.kill()
    await eventually(lambda: bool(heard.faults))
    assert heard.faults == ["4 workers were lost within 300 s; last cause: no device"]
    assert len(script.workers) == 4
    await made.stop(1)


def test_a_service_whose_workers_keep_dying_ends_with_an_error_of_one_line(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.001)
    script = Script()
    phases: list[str] = []

    def announce(status) -> None:
        phases.append(status.phase.value)
        if status.phase.value == "ready":
            script.fail = WorkerFailed("StartError", "no device")
            script.worker.kill()

    with pytest.raises(WorkerError, match="4 workers were lost within 300 s; last cause: no device"):
        run_service(config(model=str(checkpoint)), announce, launch=script.launch)
    assert phases[-3:] == ["fault", "draining", "stopped"]


def started(tmp_path: Path, monkeypatch, start: str = ""):
    """A worker process whose other end is ours."""
    monkeypatch.setenv("EDGEFLOW_TEST_START", start)
    launched = launch_worker(config(model=str(tmp_path)), ENTRY)
    launched.handover.close()
    channel = BlockingChannel(launched.sock)
    assert isinstance(channel.receive(), WarmupProgress)
    return launched.process, channel


@pytest.mark.parametrize("phase", ["loading", "idle", "in a pass"])
async def test_a_worker_without_a_front_exits(tmp_path: Path, monkeypatch, phase: str):
    process, channel = started(tmp_path, monkeypatch, "hang" if phase == "loading" else "")
    if phase != "loading":
        assert isinstance(channel.receive(), WorkerReady)
    if phase == "in a pass":
        channel.send(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""))
        assert isinstance(channel.receive(), SessionOpened)
        channel.send(SubmitFrame(session=1, epoch=1, seq=1, sizes=[1, 1], instruction="hang", payload=b"rgb"))
    channel.close()
    until_gone(process.pid)
    assert await process.wait(60) == "exit code 0"


async def test_a_worker_that_receives_nonsense_exits(tmp_path: Path, monkeypatch):
    process, channel = started(tmp_path, monkeypatch)
    assert isinstance(channel.receive(), WorkerReady)
    channel._sock.sendall(b"\x02\0\0\0\0\0\0\0\xc1\xc1")
    assert await process.wait(60) == "exit code 0"
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
