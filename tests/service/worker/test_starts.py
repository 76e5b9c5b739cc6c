"""The time that starts of workers may take."""

from __future__ import annotations

import os
import signal

from edgeflow.service.worker import timeouts
from edgeflow.service.worker.timeouts import LEAST_S, TIMES, StartLimits
from tests.service.harness import config, eventually, serving
from tests.service.processes import ProcessLauncher, runs


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
