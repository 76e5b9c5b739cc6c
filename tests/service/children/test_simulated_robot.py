"""The simulated robot that an operator starts: at most one, its token in the environment only, its end in the log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.service.children import simulated_robot
from edgeflow.service.children.simulated_robot import RobotChild, why_no_robot
from edgeflow.service.observe.log import EventLog
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import FailedPrecondition
from tests.service.harness import eventually

CONFIG = ServiceConfig(grpc={"port": 1}, chat={"enabled": False})


class RobotBeside:
    """A robot beside a service at this address, and the log."""

    def __init__(self, address: str) -> None:
        self._text = io.StringIO()
        self.robot = RobotChild(CONFIG, lambda: address, EventLog(MonotonicClock(), self._text))

    @property
    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._text.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_robot, "ENTRY", "tests.service.stand_in_robot")
    monkeypatch.setattr(simulated_robot, "LIBRARY", "json")


async def test_its_end_and_last_line_are_logged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGEFLOW_TOKEN", "that of the service")
    beside = RobotBeside("fails")
    for token in ("boss-token", ""):
        beside.robot.start(token)
        await eventually(lambda: not beside.robot.is_running)
        await beside.robot.close()
    said = [(each["event"], each["ended"], each["last"]) for each in beside.lines]
    text = "edgeflow robot: no service, token"
    assert said == [("simulated_robot", "exit code 3", f"{text} {token}") for token in ("boss-token", None)]


async def test_one_runs_at_a_time_and_ends_with_the_service():
    beside = RobotBeside("stays")
    beside.robot.start("")
    with pytest.raises(FailedPrecondition, match="runs already"):
        beside.robot.start("")
    assert beside.robot.state() == {"running": True, "lacking": ""}
    await beside.robot.close()
    assert beside.robot.state()["running"] is False
    assert [each["ended"] for each in beside.lines] == ["signal SIGKILL"]
    await beside.robot.close()


def test_it_is_offered_only_where_it_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert why_no_robot(CONFIG) == ""
    assert "embedded" in why_no_robot(CONFIG.model_copy(update={"model": str(tmp_path)}))
    assert "loopback" in why_no_robot(ServiceConfig(grpc={"host": "0.0.0.0"}, insecure=True))
    monkeypatch.setattr(simulated_robot, "LIBRARY", "no_such_library")
    assert "no_such_library" in why_no_robot(CONFIG)
