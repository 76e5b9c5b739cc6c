"""The time that starts of workers may take."""

from __future__ import annotations

import os
import signal
from functools import partial
from types import SimpleNamespace

import pytest

from edgeflow.contract import CaptureError
from edgeflow.service import app
from edgeflow.service.worker import timeouts
from edgeflow.service.worker.standby import Workers
from edgeflow.service.worker.timeouts import LEAST_S, TIMES, StartLimits
from tests.service.harness import config, eventually, serving
from tests.service.processes import ENTRY, Newborn, ProcessLauncher, runs


def test_a_start_may_take_a_multiple_of_the_slowest_of_its_kind():
    limits = StartLimits(900.0)
    assert limits.limit_s(reserve=False) == limits.limit_s(reserve=True) == 900
    limits.took(20.0, reserve=False)
    assert limits.limit_s(reserve=False) == limits.limit_s(reserve=True) == TIMES * 20
    limits.took(0.6, reserve=True)
    limits.took(3.0, reserve=False)
    assert limits.limit_s(reserve=True) == LEAST_S
    assert limits.limit_s(reserve=False) == TIMES * 20
    limits.exceeded(reserve=True)
    assert limits.limit_s(reserve=True) == 2 * LEAST_S
    limits.took(500.0, reserve=False)
    assert limits.limit_s(reserve=False) == 900


async def test_a_worker_stopped_while_it_starts_is_replaced(checkpoint, monkeypatch):
    monkeypatch.setattr(timeouts, "LEAST_S", 1.0)
    launcher = ProcessLauncher(config())
    async with serving(checkpoint, launcher) as served:
        robot = served.robot()
        await robot.open()
        monkeypatch.setenv("EDGEFLOW_TEST_START", "stop")
        os.kill(launcher.pids[0], signal.SIGKILL)
        await robot.notice("worker_lost")
        await robot.frame(1)
        await robot.status(1)
        await eventually(lambda: len(launcher.pids) == 2)
        monkeypatch.setenv("EDGEFLOW_TEST_START", "")
        await robot.notice("worker_ready")
        (failed,) = served.events("worker_failed")
        assert failed["text"].startswith("the worker was not ready after") and failed["ended"] == "signal SIGKILL"
        assert not runs(launcher.pids[1])


OWN = SimpleNamespace(launch=None)  # the service starts its workers itself


async def test_workers_that_cannot_capture_passes_start_without_graphs(checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "Workers", partial(Workers, entry=ENTRY))
    monkeypatch.setenv("EDGEFLOW_TEST_START", "capture")
    ours = Newborn()
    async with serving(checkpoint, OWN) as served:
        assert [event["text"] for event in served.events("worker_failed")] == ["graphs: not permitted"]
        told = "graphs: not permitted; passes run without graphs"
        assert served.service.status.warnings == (told,)
        assert [event["text"] for event in served.events("warning")] == [told]
        robot = served.robot()
        await robot.open()
        await eventually(lambda: bool(served.events("worker_standby")))
        os.kill(ours()[0], signal.SIGKILL)
        await robot.notice("worker_ready")
        assert len(served.events("worker_failed")) == 1, "the reserve has graphs off too"


async def test_graphs_that_are_required_and_cannot_be_captured_fail_the_start(checkpoint, monkeypatch):
    monkeypatch.setattr(app, "Workers", partial(Workers, entry=ENTRY))
    monkeypatch.setenv("EDGEFLOW_TEST_START", "capture")
    with pytest.raises(CaptureError, match="not permitted"):
        async with serving(checkpoint, OWN, graphs="on"):
            pass
