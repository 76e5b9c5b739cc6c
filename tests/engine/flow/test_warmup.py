"""The warm-up of flow policies, the times of their passes, and a worker that serves one."""

from __future__ import annotations

import math

import pytest
import torch

from edgeflow.contract import Observation, Pace
from edgeflow.engine.control.engine import EngineOptions, FlowEngine, flow_engine
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.flow.frames import FlowFrame, RTCSettings
from edgeflow.engine.graphs import record_passes
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.worker.calibrate import calibrate
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import WorkerError
from tests.engine.flow.tiny_flow import CROSS_SHAPE, JOINT_SHAPE, SIDE, TinyFlowPolicy


def engine_of(policy: TinyFlowPolicy, sessions: int = 2) -> FlowEngine:
    return flow_engine(policy, EngineOptions(sessions=sessions, text_rows=4, table=built_in_table()))


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_policy_is_checked(shift: Shift, dtype: torch.dtype):
    engine = engine_of(TinyFlowPolicy(CROSS_SHAPE, dtype=dtype))
    assert record_passes(engine, lambda *_: None, required=True) == ""
    warm_up(engine, shift, lambda *_: None)


def moved_in_packs(share: float) -> TinyFlowPolicy:
    """A policy whose velocities are larger by this share where steps share a pass."""
    policy = TinyFlowPolicy(JOINT_SHAPE)
    network, plain = policy.network, policy.network.velocity
    network.velocity = lambda hidden: plain(hidden) * (1 + share * (len(hidden) > policy.sizes.step_rows))
    return policy


def test_steps_that_touch_each_other_are_found():
    with pytest.raises(WorkerError, match="other actions pipelined than each frame by itself"):
        warm_up(engine_of(moved_in_packs(0.01)), Shift.ROTATE, lambda *_: None)


def test_rows_that_are_rounded_may_move_actions_as_pixels_do():
    with pytest.raises(WorkerError, match="other actions pipelined than each frame by itself"):
        warm_up(engine_of(moved_in_packs(1e-3)), Shift.ROTATE, lambda *_: None)
    warm_up(engine_of(moved_in_packs(1e-3)), Shift.ROTATE, lambda *_: None, rounds=True)


@pytest.mark.parametrize("rtc", [RTCSettings(execution_horizon=4), RTCSettings(trained_max_delay=2)])
def test_guided_steps_are_checked(rtc: RTCSettings):
    engine = engine_of(TinyFlowPolicy(JOINT_SHAPE, rtc=rtc))
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    program = engine.contract._program
    kept = program._guided
    program._guided = lambda *given: kept(*given) * math.nan
    with pytest.raises(WorkerError, match="not finite"):
        warm_up(engine, Shift.ROTATE, lambda *_: None)


def test_damaged_weights_are_found():
    policy = TinyFlowPolicy(JOINT_SHAPE)
    policy.network._weights["action_out"][0, 0] = math.inf
    with pytest.raises(WorkerError, match="not finite"):
        warm_up(engine_of(policy), Shift.ROTATE, lambda *_: None)


def test_all_corners_of_the_cost_model_are_measured():
    """By a clock that counts the rows of each pass, so that every corner is known."""
    policy = TinyFlowPolicy(JOINT_SHAPE)
    clock, engine = ManualClock(), engine_of(policy)
    launch, step_rows = engine.launch, policy.sizes.step_rows

    def counting(planned, prompts):
        clock.advance_ns(1000 * planned.rows)
        return launch(planned, prompts)

    engine.launch = counting
    times = calibrate(engine, clock=clock)
    prefix, steps = 1000 * (policy.fixed_rows + 2), policy.sizes.steps
    assert (times.stages, times.prefill_ns, times.two_prefills_ns) == (steps + 1, prefix, 2 * prefix)
    assert (times.decode_ns, times.decodes_ns) == (1000 * step_rows, 1000 * step_rows * steps)
    assert times.packed_ns == prefix + 1000 * step_rows * steps
    assert times.row_ns == 1000 * step_rows
    assert times.pass_ns(2, 2 * steps + 1) == 2 * prefix + 1000 * step_rows * (2 * steps + 1)


def test_frames_that_are_made_up_are_not_counted():
    policy = TinyFlowPolicy(JOINT_SHAPE)
    plain, policy.unusual_states = policy.prepare, 2

    def counting(observation: Observation) -> FlowFrame:
        policy.unusual_states += 1
        return plain(observation)

    policy.prepare = counting
    engine = engine_of(policy)
    for run in (lambda: warm_up(engine, Shift.ROTATE, lambda *_: None), lambda: calibrate(engine)):
        run()
        assert policy.unusual_states == 2
    counting(next(sample_observations(policy.inputs, 1, "go")))
    assert policy.unusual_states == 3


def test_a_worker_serves_it_and_a_frame_that_is_not_finite_costs_no_other_its_chunk():
    policy, said = TinyFlowPolicy(JOINT_SHAPE), list[Message]()
    limits = SchedulerLimits(policy.sizes.steps + 1, 2, row_budget=1000, drain_after_ns=0)
    worker = Worker(engine_of(policy), Scheduler(limits), ManualClock(), said.append)
    for session in (1, 2):
        worker.inbox.put(OpenSession(session=session, epoch=1, pace=Pace(1), unnorm_key="plain"))
    for seq, broken in ((1, True), (2, False)):
        for session in (1, 2):
            state = math.nan if broken and session == 1 else 0.5
            worker.inbox.put(frame(session, seq, state))
        while worker.step():
            pass
    found = {(each.session, each.seq): each for each in said if isinstance(each, FrameResult)}
    assert {key: each.valid for key, each in found.items()} == {
        (1, 1): False,
        (2, 1): True,
        (1, 2): True,
        (2, 2): True,
    }
    for each in found.values():
        assert (each.chunk.horizon, each.chunk.dims, each.passes) == (policy.sizes.horizon, 2, policy.sizes.steps + 1)


def frame(session: int, seq: int, state: float) -> SubmitFrame:
    pixels = bytes((session * 40 + seq * 7 + index) % 256 for index in range(2 * 3 * SIDE * SIDE))
    return SubmitFrame(
        session=session,
        epoch=1,
        seq=seq,
        sizes=[SIDE] * 4,
        state=[state] * 3,
        instruction="go on",
        payload=pixels,
    )


def test_a_prefix_of_more_rows_than_planned_is_rejected():
    policy = TinyFlowPolicy(JOINT_SHAPE)
    engine = engine_of(policy, 1)
    engine.contract.stages.prefix_rows = lambda cameras, tokens: policy.network.prefix_rows(cameras, tokens) + 1
    limits = SchedulerLimits(policy.sizes.steps + 1, 1, row_budget=1000, drain_after_ns=0)
    worker = Worker(engine, Scheduler(limits), ManualClock(), lambda message: None)
    worker.inbox.put(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="plain"))
    worker.inbox.put(frame(1, 1, 0.0))
    with pytest.raises(ValueError, match=r"has 11 rows of a prefix; 10 were planned"):
        worker.step()
