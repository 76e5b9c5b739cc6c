"""Real-time chunking with a flow policy, through the worker's loop: chunks continue the one that the robot plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.flow.frames import RTCSettings, Schedule, guidance_of
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.trajectory import Playing, Seam
from tests.engine.flow.test_warmup import engine_of, frame
from tests.engine.flow.tiny_flow import ADAPTIVE_SHAPE, JOINT_SHAPE, TinyFlowPolicy

STEP_NS = 20_000_000


class FlowBench:
    def __init__(self, policy: TinyFlowPolicy, depth: int = 1, limits: dict[str, object] | None = None) -> None:
        self.said: list[Message] = []
        passes = SchedulerLimits(policy.sizes.steps + 1, 1, row_budget=1000, drain_after_ns=0)
        self.engine: FlowEngine = engine_of(policy, 1)
        trajectory = TrajectoryConfig.model_validate({"limits": limits or {}})
        self.worker = Worker(self.engine, Scheduler(passes), ManualClock(), self.said.append, trajectory=trajectory)
        self.tell(
            OpenSession(session=1, epoch=1, pace=Pace(depth), unnorm_key="plain", continues=policy.rtc is not None)
        )

    def tell(self, message: Message) -> Message:
        return self.tell_all(message)[-1]

    def tell_all(self, message: Message) -> list[Message]:
        self.worker.inbox.put(message)
        while self.worker.step():
            pass
        said, self.said[:] = list(self.said), []
        return said

    def answer(self, message: SubmitFrame) -> FrameResult:
        result = self.tell(message)
        assert isinstance(result, FrameResult) and result.valid
        return result

    def answer_both(self, older: SubmitFrame, newer: SubmitFrame) -> list[FrameResult]:
        """The answers to two frames, of which the newer one is launched while the older one is in the pipeline."""
        self.worker.inbox.put(older)
        self.worker.step()
        return [each for each in self.tell_all(newer) if isinstance(each, FrameResult)]


def rows_of(result: FrameResult) -> np.ndarray:
    return np.reshape(result.chunk.values, (result.chunk.horizon, -1))


def second(playing: Playing | None, rows: int, delay: int) -> SubmitFrame:
    return replace(frame(1, 2, 0.3), stamp_ns=rows * STEP_NS, playing=playing, delay_ns=delay * STEP_NS)


def test_a_trained_policy_keeps_the_rows_that_will_have_passed():
    bench = FlowBench(TinyFlowPolicy(JOINT_SHAPE, rtc=RTCSettings(trained_max_delay=2)))
    first = bench.answer(frame(1, 1, 0.5))
    result = bench.answer(second(Playing(1, 1), 1, 2))
    np.testing.assert_allclose(rows_of(result)[:2], rows_of(first)[1:3], rtol=1e-6)
    assert (result.report.continues, result.report.conditioned_steps) == (1, 2)
    refused = bench.answer(replace(second(Playing(2, 0), 1, 3), seq=3))
    assert (refused.report.continues, refused.report.seam) == (0, Seam.REFUSED)


def test_guidance_draws_the_rows_that_will_have_passed_to_those_in_execution():
    settings = RTCSettings(schedule=Schedule.ZEROS, execution_horizon=5)
    gaps = []
    for rtc in (settings, None):
        bench = FlowBench(TinyFlowPolicy(JOINT_SHAPE, rtc=rtc))
        first = bench.answer(frame(1, 1, 0.5))
        result = bench.answer(second(Playing(1, 1), 1, 2))
        gaps.append(np.abs(rows_of(result)[:2] - rows_of(first)[1:3]).max())
        assert result.report.continues == (rtc is not None)
    assert gaps[0] < 0.5 * gaps[1]


@pytest.mark.parametrize("rtc", [None, RTCSettings(execution_horizon=3)])
def test_the_candidate_nearest_to_what_is_executed_is_sent_and_continued(rtc: RTCSettings | None):
    bench = FlowBench(TinyFlowPolicy(ADAPTIVE_SHAPE, rtc=rtc))
    first = bench.answer(frame(1, 1, 0.5))
    assert len(first.report.candidates) == 3 and {each.distance for each in first.report.candidates} == {0.0}
    result = bench.answer(second(Playing(1, 1), 1, 2))
    scores = [each.score for each in result.report.candidates]
    assert len(scores) == 3 and scores[result.report.chosen] == min(scores)
    assert all(each.distance > 0 for each in result.report.candidates)


def test_in_a_pipeline_guidance_is_of_the_launch_and_limits_are_of_the_newest_answer_sent():
    per_step = 1e-3
    for limited in (False, True):
        policy = TinyFlowPolicy(JOINT_SHAPE, rtc=RTCSettings(execution_horizon=3))
        name = policy.action_schema("plain").names[0]
        limits = {name: {"velocity": per_step / STEP_NS * 1e9, "free_start": True}} if limited else None
        bench = FlowBench(policy, depth=2, limits=limits)
        bench.answer(frame(1, 1, 0.5))
        older = second(Playing(1, 1), 1, 2)
        answers = bench.answer_both(older, replace(second(Playing(1, 2), 2, 2), seq=3))
        assert [each.seq for each in answers] == [2, 3]
        assert [each.report.continues for each in answers] == [1, 2 if limited else 1]
        if limited:
            before, after = (rows_of(each)[:, 0] for each in answers)
            seam = np.diff([before[2], *after[2:]])  # row 2 of the older is played one row before row 2 of the newer
            assert np.abs(seam).max() <= per_step * (1 + 1e-9)


@pytest.fixture
def guided(monkeypatch) -> Callable[[FlowBench], np.ndarray]:
    """The target of the guidance [H, A] of a second frame that continues the first one's answer."""

    def target_of(bench: FlowBench) -> np.ndarray:
        found = []

        def noted(prompt, previous):
            found.append(guidance_of(previous, RTCSettings(), JOINT_SHAPE.sizes))
            return prompt

        monkeypatch.setattr(bench.engine, "continued", noted)
        bench.answer(second(Playing(1, 1), 1, 2))
        return found[0].target.numpy()

    return target_of


def test_padding_of_a_latent_action_is_continued_as_zeros(guided):
    bench = FlowBench(TinyFlowPolicy(JOINT_SHAPE, rtc=RTCSettings()))
    first, target = bench.answer(frame(1, 1, 0.5)), guided(bench)
    np.testing.assert_allclose(target[:4, :2], rows_of(first)[1:] / 2.0, rtol=1e-6)
    assert JOINT_SHAPE.sizes.dims == 3 and not target[:, 2].any()


@pytest.mark.parametrize("change", ["bounds", "limits"])
def test_an_answer_continues_the_sent_rows_where_limits_changed_them(guided, change: str):
    policy = TinyFlowPolicy(JOINT_SHAPE, rtc=RTCSettings())
    wanted = rows_of(FlowBench(policy).answer(frame(1, 1, 0.5)))
    if change == "bounds":
        policy.most = float(np.median(np.abs(wanted)))
    bench = FlowBench(policy, limits={"a": {"velocity": 0.05, "free_start": True}} if change == "limits" else None)
    first = rows_of(bench.answer(frame(1, 1, 0.5)))
    assert np.abs(first - wanted)[1:].max() > 1e-2
    np.testing.assert_allclose(guided(bench)[:4, :2], first[1:] / 2.0, rtol=1e-6)
