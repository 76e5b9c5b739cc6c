"""Frames leave no memory behind; what the operating system may reject is told."""

from __future__ import annotations

import gc
import io
import os
import resource
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edgeflow.config.service import load_config
from edgeflow.contract import Chunk, Pace
from edgeflow.ipc.messages import FrameResult, Message, SubmitFrame
from edgeflow.service.frontends.grpc.stream import receive, server_message
from edgeflow.service.host import resources
from edgeflow.service.host.process import no_core_dumps
from edgeflow.service.host.resources import lock_memory, set_scheduling
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.capacity import Decoders
from edgeflow.service.sessions.observers import Metrics, Observers
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow.service.sessions.session import Session
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.types import Mode
from tests.service.harness import config, eventually, frame_message, received, serving
from tests.service.processes import ProcessLauncher
from tests.service.scripted import SCHEMA, good_values
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

FRAMES = 1500
LIMITS = load_config(None, {}).limits
GROWTH_BYTES = 64 << 10  # of FRAMES frames: 43 bytes each


class Port:
    """A worker that answers at once."""

    writable = True

    def __init__(self) -> None:
        self.answer: Callable[[FrameResult], None] | None = None

    def send(self, message: Message) -> None:
        if isinstance(message, SubmitFrame) and self.answer is not None:
            self.answer(
                FrameResult(
                    session=1,
                    epoch=message.epoch,
                    seq=message.seq,
                    chunk=Chunk(tuple(good_values(message))),
                    token_ids=[1, 2, 3],
                    valid=True,
                    queue_ns=1,
                    inference_ns=1,
                    passes=1,
                    settled=3,
                )
            )


async def frames(runner: SessionRunner, first: int, count: int, leak: list[bytearray] | None) -> None:
    for seq in range(first, first + count):
        data = bytes(3)
        receive(received(frame_message(seq, data, stamp_ns=seq * 50 * MS)), runner, LIMITS)
        acted = False
        while not acted:
            for event in await runner.next_events():
                acted = server_message(event).frame_status.seq == seq or acted
        if leak is not None:
            leak.append(bytearray(64))


@pytest.mark.parametrize("leaks", [False, True])
async def test_frames_leave_no_memory(leaks: bool):
    """The second case is the control: 64 bytes a frame are seen."""
    log = EventLog(MonotonicClock(), io.StringIO())
    with ThreadPoolExecutor(1) as pool:
        request = replace(REQUEST, policy_cameras=REQUEST.cameras)
        session, port = Session(1, request, SCHEMA, RULES, 0), Port()
        runner = SessionRunner(
            session,
            SimpleNamespace(mode=Mode.SERIAL, pace=Pace(1)),  # the rest of its plan matters to the worker only
            port=port,
            pool=pool,
            clock=MonotonicClock(),
            decoders=Decoders(1, 0),
            observers=Observers([Metrics()], log),
            log=log,
            want_ring=lambda _: None,
            alone=lambda _: True,
        )
        port.answer = session.result
        kept: list[bytearray] | None = [] if leaks else None
        await frames(runner, 1, 300, kept)
        tracemalloc.start()
        try:
            await frames(runner, 301, 200, kept)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            await frames(runner, 501, FRAMES, kept)
            gc.collect()
            growth = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert (growth > GROWTH_BYTES) is leaks, f"{growth} bytes"


def test_settings_that_are_not_permitted_become_warnings(monkeypatch: pytest.MonkeyPatch):
    def reject(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("sched_setaffinity", "sched_setscheduler", "setpriority"):
        monkeypatch.setattr(os, name, reject)
    monkeypatch.setattr(resources, "_lock_all", reject)
    assert set_scheduling("worker", 0, [0], 50) == [
        "realtime.worker_cpus [0]: not permitted",
        "realtime.worker_priority 50 (SCHED_FIFO): not permitted",
    ]
    assert set_scheduling("front", 0, [], -5) == ["realtime.front_priority -5 (nice): not permitted"]
    assert lock_memory() == ["realtime.lock_memory: not permitted"]


def test_a_missing_cpu_is_reported():
    (told,) = set_scheduling("front", 0, [100_000], 0)
    assert told.startswith("realtime.front_cpus [100000]: ") and "not permitted" not in told


async def test_the_worker_gets_its_cpus(checkpoint):
    cpu = max(os.sched_getaffinity(0))
    launcher = ProcessLauncher(config(realtime__worker_cpus=[cpu], realtime__worker_priority=0))
    async with serving(checkpoint, launcher) as served:
        assert os.sched_getaffinity(launcher.pids[0]) == {cpu}
        assert served.service.status.warnings == ()


async def test_a_rejection_is_in_the_log_and_in_the_status(checkpoint):
    launcher = ProcessLauncher(config(realtime__worker_cpus=[100_000]))
    async with serving(checkpoint, launcher) as served:
        (warning,) = served.service.status.warnings
        assert warning.startswith("realtime.worker_cpus")
        assert [event["text"] for event in served.events("warning")] == [warning]


async def test_live_objects_are_frozen_again_after_a_restart(checkpoint, monkeypatch):
    monkeypatch.undo()  # of `no_collecting`
    gc.unfreeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # about what other tests left
        gc.collect()
    async with serving(checkpoint) as served:
        assert gc.get_freeze_count() > 0
        robot = served.robot()
        await robot.open()
        gc.unfreeze()
        served.script.worker.kill()
        await robot.notice("worker_ready")
        await eventually(lambda: gc.get_freeze_count() > 0)
        assert served.metric("edgeflow_major_page_faults_total") >= 0
        assert "edgeflow_major_page_faults_total" in served.service.metrics.text().decode()


def test_cores_are_not_dumped():
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    pid = os.fork()
    if pid == 0:
        no_core_dumps()
        os._exit(resource.getrlimit(resource.RLIMIT_CORE) != (0, 0))
    assert os.waitpid(pid, 0)[1] == 0
    assert resource.getrlimit(resource.RLIMIT_CORE) == (soft, hard)
