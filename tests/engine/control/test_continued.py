"""Chunks that continue the one being played, through the worker's loop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.flow.frames import Previous, RTCSettings
from edgeflow.ipc.messages import (
    FrameDropped,
    FrameResult,
    Message,
    OpenSession,
    Ping,
    Pong,
    ResetSession,
    SessionOpened,
)
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.trajectory import LimitKind, Playing, Seam
from tests.engine.control.small_policy import HORIZON, STEP_MS, SmallPolicy
from tests.engine.control.test_one_pass import frame

MS = 1_000_000


class Continuing(OnePassEngine):
    """Continues whatever it is asked to, for at most two rows, by answering as ever. asked: by frame."""

    def __init__(self, policy: SmallPolicy) -> None:
        super().__init__(policy, sessions=1, text_rows=3)
        self.asked: list[Previous] = []

    def continued(self, prompt, previous: Previous):
        if previous.delay > 2:
            raise InvalidArgument("is too long", field="previous.delay")
        self.asked.append(previous)
        return replace(prompt)


@dataclass
class ContinuedBench:
    rtc: bool = True
    limits: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = SmallPolicy()
        policy.unusual_states = 3
        policy.rtc = RTCSettings() if self.rtc else None
        self.engine = Continuing(policy)
        self.said: list[Message] = []
        limits = SchedulerLimits(1, 1, row_budget=1000, drain_after_ns=0, shift=Shift.ROTATE)
        trajectory = TrajectoryConfig.model_validate({"limits": self.limits})
        clock = ManualClock()
        self.worker = Worker(self.engine, Scheduler(limits), clock, self.said.append, trajectory=trajectory)
        opened = self.tell(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="doubled", continues=self.rtc))
        assert isinstance(opened, SessionOpened)

    def tell(self, message: Message) -> Message | None:
        self.worker.inbox.put(message)
        while self.worker.step():
            pass
        said, self.said[:] = list(self.said), []
        return said[-1] if said else None

    def answer(self, seq: int, stamp_ms: float, playing: Playing | None, delay_ms: float = 30, epoch: int = 1):
        sent = frame(1, seq)
        changed = {
            "stamp_ns": round(stamp_ms * MS),
            "playing": playing,
            "delay_ns": round(delay_ms * MS),
            "epoch": epoch,
        }
        result = self.tell(replace(sent, **changed))
        assert isinstance(result, FrameResult) and result.valid
        return result


def rows_of(result: FrameResult) -> np.ndarray:
    return np.reshape(result.chunk.values, (HORIZON, -1))


def test_an_answer_continues_the_rows_that_are_left_and_says_so():
    bench = ContinuedBench()
    first = bench.answer(1, 100, None)
    assert (first.report.continues, first.report.seam) == (0, Seam.NONE)
    second = bench.answer(2, 100 + STEP_MS, Playing(1, 1))
    assert (second.report.continues, second.report.conditioned_steps) == (1, 2)
    assert second.report.seam is Seam.CONTINUED
    (asked,) = bench.engine.asked
    assert asked.delay == 2
    np.testing.assert_allclose(asked.values, rows_of(first)[1:] / 2.0)  # as the policy gave them


@pytest.mark.parametrize(
    ("change", "seam"),
    [
        ({"playing": Playing(9, 0)}, Seam.FORGOTTEN),
        ({"playing": Playing(1, 3)}, Seam.APART),
        ({"delay_ms": 90}, Seam.OVER),
        ({"delay_ms": 50}, Seam.REFUSED),
    ],
)
def test_an_answer_that_continues_nothing_is_a_fresh_one_with_the_reason(change, seam):
    bench = ContinuedBench()
    bench.answer(1, 100, None)
    result = bench.answer(2, **({"stamp_ms": 100, "playing": Playing(1, 0)} | change))
    assert (result.report.continues, result.report.conditioned_steps, result.report.seam) == (0, 0, seam)
    assert not bench.engine.asked


def test_nothing_continues_a_chunk_of_another_epoch():
    bench = ContinuedBench()
    bench.answer(1, 100, None)
    bench.tell(ResetSession(1, 2))
    result = bench.answer(2, 100, Playing(1, 0), epoch=2)
    assert result.report.seam is Seam.FORGOTTEN and not bench.engine.asked


def test_a_session_without_rtc_gets_fresh_chunks():
    bench = ContinuedBench(rtc=False)
    bench.answer(1, 100, None)
    result = bench.answer(2, 100, Playing(1, 0))
    assert (result.report.continues, result.report.seam) == (0, Seam.NONE) and not bench.engine.asked


def test_limits_hold_from_the_chunk_in_execution_on_and_any_policy_keeps_them():
    per_step = 0.25
    bench = ContinuedBench(rtc=False, limits={"a": {"velocity": per_step / STEP_MS * 1e3, "free_start": True}})
    first, second = bench.answer(1, 100, None), bench.answer(2, 100 + STEP_MS, Playing(1, 1))
    for result in (first, second):
        assert np.abs(np.diff(rows_of(result)[:, 0])).max() <= per_step * (1 + 1e-9)
    np.testing.assert_array_equal(rows_of(second)[:2, 0], rows_of(first)[1:3, 0])
    assert abs(rows_of(second)[2, 0] - rows_of(first)[2, 0]) <= per_step * (1 + 1e-9)
    assert {each.limit for each in second.report.limited} == {LimitKind.VELOCITY}
    assert (second.report.continues, second.report.conditioned_steps) == (1, 2)


def test_an_answer_continues_the_one_that_will_arrive_before_it():
    bench = ContinuedBench()
    first, second = bench.answer(1, 100, None), bench.answer(2, 100 + STEP_MS, Playing(1, 1), 40)
    third = bench.answer(3, 100 + 2 * STEP_MS, Playing(1, 2), 40)
    assert second.report.continues == 1
    assert (third.report.continues, third.report.conditioned_steps) == (2, 2)
    asked = bench.engine.asked[-1]
    np.testing.assert_allclose(asked.values, [*rows_of(first)[2:3] / 2.0, *rows_of(second)[2:] / 2.0])


def test_states_outside_their_statistics_are_counted():
    pong = ContinuedBench().tell(Ping(1))
    assert isinstance(pong, Pong) and pong.unusual_states == 3


def test_a_frame_that_the_policy_rejects_says_why(monkeypatch):
    bench = ContinuedBench()

    def refuses(instruction, state=None):
        raise InvalidArgument("contains a special token", field="instruction")

    monkeypatch.setattr(bench.engine.policy, "text_rows", refuses)
    dropped = bench.tell(frame(1, 1))
    assert isinstance(dropped, FrameDropped)
    assert (dropped.disposition, dropped.code, dropped.reason) == ("rejected", "INVALID_ARGUMENT", "INVALID_ARGUMENT")
