"""A front with a scripted worker, plans that finish soon, and runs made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.plan import ClosedLoopPlan, LoadPlan
from edgeflow_client.loadtest.run import Measurement
from edgeflow_client.timeline import Timeline
from edgeflow_client.types import CameraSpec, Disposition, ImageFormat, StageTimings
from tests.service.conftest import no_collecting, write_fake_checkpoint

__all__ = ["no_collecting"]  # a fixture here too

MS = 1_000_000
CAMERA = CameraSpec("camera", 32, 24, ImageFormat.JPEG)
SESSION = SessionSettings(cameras=(CAMERA,), control_period_s=0.05)
PLAN = LoadPlan(
    address="127.0.0.1:0",
    session=SESSION,
    pattern=ClosedLoopPlan(),
    warm_up_s=0.1,
    duration_s=0.5,
    ramp_up_s=0.05,
    grace_s=5.0,
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def acted(
    ledger: Ledger,
    due_ms: float,
    age_ms: float,
    valid_ms: int = 250,
    passes: int = 4,
    *,
    max_age_ms: int = 0,
    unsettled: int = 0,
    executed: Timeline | None = None,
) -> None:
    """An action whose time in the service is half its age; its passes took 1 ms each."""
    number = ledger.offer(round(due_ms * MS), round(due_ms * MS)).number
    received_ns = round((due_ms + age_ms) * MS)
    timings = StageTimings(1 * MS, 2 * MS, passes * MS, passes)
    assert ledger.act(
        number,
        stamp_ns=round(due_ms * MS),
        received_ns=received_ns,
        valid_for_ms=valid_ms,
        server_ns=round(age_ms * MS) // 2,
        timings=timings,
        max_age_ms=max_age_ms,
        unsettled=unsettled,
        executed=executed,
    )


def disposed(ledger: Ledger, due_ms: float, disposition: Disposition, reason: str) -> None:
    number = ledger.offer(round(due_ms * MS), round(due_ms * MS)).number
    ledger.dispose(number, number, disposition, reason, round((due_ms + 1) * MS))


def measured(ledgers: list[Ledger], end_ms: float = 1000, **changes) -> Measurement:
    """A run whose measured time is 0 to end_ms."""
    plan = replace(PLAN, robots=len(ledgers), connections=1, **changes)
    run = Measurement(plan=plan, ledgers=ledgers, begin_ns=0, end_ns=round(end_ms * MS))
    run.opened, run.refusals = [None] * len(ledgers), [""] * len(ledgers)
    return run
