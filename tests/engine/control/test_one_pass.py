"""Policies that answer in one pass, through the worker's loop: observations in, chunks out, robots in batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgeflow.contract import Observation, Pace
from edgeflow.engine.control.engine import EngineOptions, OnePassEngine, one_pass_engine
from edgeflow.engine.control.history import observation_of
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.graphs import record_passes
from edgeflow.ipc.messages import FrameDropped, FrameResult, Message, OpenSession, SessionOpened, SubmitFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.offline import run_once
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.worker.calibrate import calibrate
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition, WorkerError
from edgeflow_client.reasons import Reason
from tests.engine.control.recorded_batches import check_batches, chunks
from tests.engine.control.small_policy import DIMS, HORIZON, INPUTS, STEP_MS, SmallFeatures, SmallPolicy
from tests.engine.recorded_graphs import Replays

TEXT_ROWS = 3


def engine_of(policy: SmallPolicy, sessions: int = 2) -> OnePassEngine:
    return one_pass_engine(policy, EngineOptions(sessions=sessions, text_rows=TEXT_ROWS, table=built_in_table()))


class OnePassBench:
    """A worker over the small policy, and what it said."""

    def __init__(self, policy: SmallPolicy, sessions: int = 2) -> None:
        limits = SchedulerLimits(1, sessions, row_budget=1000, drain_after_ns=0, shift=Shift.ROTATE)
        self.said: list[Message] = []
        self.worker = Worker(engine_of(policy, sessions), Scheduler(limits), ManualClock(), self.said.append)
        for session in range(1, sessions + 1):
            key = policy.unnorm_keys[session % 2]
            self.worker.inbox.put(OpenSession(session=session, epoch=1, pace=Pace(1), unnorm_key=key))

    def drain(self) -> list[Message]:
        while self.worker.step():
            pass
        said, self.said[:] = list(self.said), []
        return said


def frame(session: int, seq: int, *, state: tuple[float, ...] | None = None, text: str = "go") -> SubmitFrame:
    generator = np.random.default_rng(100 * session + seq)
    top = generator.integers(0, 256, (8, 10, 3), np.uint8).tobytes()
    wrist = generator.integers(0, 256, (6, 4, 3), np.uint8).tobytes()
    return SubmitFrame(
        session=session,
        epoch=1,
        seq=seq,
        sizes=[8, 10, 6, 4],
        state=list(generator.standard_normal(4) if state is None else state),
        instruction=text,
        payload=top + wrist,
    )


def expected(policy: SmallPolicy, message: SubmitFrame, key: str) -> np.ndarray:
    seen = policy.prepare(observation_of(message, INPUTS))
    return policy.actions(run_once(policy, [seen])[0].double().numpy(), key)


def test_robots_are_one_batch_and_each_gets_its_chunk():
    policy = SmallPolicy()
    bench = OnePassBench(policy)
    opened = [message for message in bench.drain() if isinstance(message, SessionOpened)]
    assert [(each.schema.horizon, each.schema.step_ms) for each in opened] == [(HORIZON, STEP_MS)] * 2
    frames = {session: frame(session, 1) for session in (1, 2)}
    for message in frames.values():
        bench.worker.inbox.put(message)
    found = {message.session: message for message in bench.drain() if isinstance(message, FrameResult)}
    assert policy.sizes == [2]
    for session, result in found.items():
        wanted = expected(policy, frames[session], policy.unnorm_keys[session % 2])
        assert (result.chunk.horizon, result.chunk.step_ms, result.chunk.dims) == (HORIZON, STEP_MS, DIMS)
        assert np.allclose(np.reshape(result.chunk.values, (HORIZON, DIMS)), wanted, rtol=1e-6)
        assert (result.valid, result.passes, result.token_ids, result.settled) == (True, 1, [], 0)


def test_one_robot_with_a_broken_sensor_costs_no_other_its_action():
    bench = OnePassBench(SmallPolicy())
    bench.drain()
    bench.worker.inbox.put(frame(1, 1, state=(math.nan, 0.0, 0.0, 0.0)))
    bench.worker.inbox.put(frame(2, 1))
    found = {message.session: message.valid for message in bench.drain() if isinstance(message, FrameResult)}
    assert found == {1: False, 2: True}


def test_a_long_instruction_is_rejected_with_the_limit():
    bench = OnePassBench(SmallPolicy())
    bench.drain()
    bench.worker.inbox.put(frame(1, 1, text="one two three four"))
    (dropped,) = bench.drain()
    assert isinstance(dropped, FrameDropped)
    assert (dropped.reason, dropped.text) == (
        Reason.INSTRUCTION_TOO_LONG,
        "instruction: has 4 prompt tokens; the limit is 3",
    )


class Choosy(SmallPolicy):
    """Refuses frames with "dark" in their instruction, when they are prepared."""

    def prepare(self, observation: Observation) -> SmallFeatures:
        if "dark" in observation.instruction:
            raise FailedPrecondition("is too dark", field="frame.images", reason="TOO_DARK")
        return super().prepare(observation)


@pytest.mark.parametrize(("refused", "batches"), [((1,), [2]), ((1, 3), [1]), ((1, 2, 3), [])])
def test_only_the_frame_that_cannot_be_prepared_leaves_its_session(refused: tuple, batches: list[int]):
    policy = Choosy()
    bench = OnePassBench(policy, sessions=3)
    bench.drain()
    for session in (1, 2, 3):
        bench.worker.inbox.put(frame(session, 1, text="dark" if session in refused else "go"))
    said = bench.drain()
    dropped = {each.session: each for each in said if isinstance(each, FrameDropped)}
    assert set(dropped) == set(refused) and policy.sizes == batches
    for each in dropped.values():
        assert (each.disposition, each.code, each.reason) == ("rejected", "FAILED_PRECONDITION", "TOO_DARK")
        assert each.text == "frame.images: is too dark"
    assert {each.session for each in said if isinstance(each, FrameResult)} == {1, 2, 3} - set(refused)
    for session in (1, 2, 3):
        bench.worker.inbox.put(frame(session, 2))
    found = {each.session: each.seq for each in bench.drain() if isinstance(each, FrameResult)}
    assert found == {1: 2, 2: 2, 3: 2}


def test_frames_are_prepared_once_where_none_is_rejected(monkeypatch):
    policy = SmallPolicy()
    bench, prepared = OnePassBench(policy), []
    prepare = policy.prepare
    monkeypatch.setattr(policy, "prepare", lambda seen: prepared.append(seen) or prepare(seen))
    for session in (1, 2):
        bench.worker.inbox.put(frame(session, 1))
    bench.drain()
    assert len(prepared) == 2


@pytest.mark.parametrize(
    ("sizes", "state"), [([8, 10], [0.0] * 4), ([8, 10, 6, 4], [0.0] * 3)], ids=["a camera", "a number"]
)
def test_an_observation_without_what_the_policy_needs_is_no_message_of_control(sizes: list[int], state: list[float]):
    pixels = bytes(sum(3 * high * wide for high, wide in zip(sizes[::2], sizes[1::2], strict=True)))
    message = SubmitFrame(session=1, epoch=1, seq=1, sizes=sizes, state=state, instruction="go", payload=pixels)
    with pytest.raises(WorkerError, match="the policy needs 2 and 4"):
        observation_of(message, INPUTS)


def test_images_and_state_keep_their_order_and_names():
    seen = observation_of(frame(1, 1, state=(1.0, 2.0, 3.0, 4.0)), INPUTS)
    assert seen.state == {"joints": (1.0, 2.0, 3.0), "gripper": (4.0,)}
    assert {name: (image.height, image.width) for name, image in seen.images.items()} == {
        "top": (8, 10),
        "wrist": (6, 4),
    }
    assert bytes(seen.images["wrist"].data) == frame(1, 1).payload[-6 * 4 * 3 :]


def test_its_passes_can_be_checked_and_timed():
    policy = SmallPolicy()
    engine = engine_of(policy)
    assert record_passes(engine, lambda *_: None, required=True) == ""
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    times = calibrate(engine)
    assert times.stages == 1
    assert times.prefill_ns > 0 and times.two_prefills_ns > 0
    assert max(policy.sizes) == 2


def test_a_batch_whose_frames_touch_each_other_is_found():
    with pytest.raises(WorkerError, match="other actions in a batch than each frame by itself"):
        warm_up(engine_of(SmallPolicy(leaks=True)), Shift.ROTATE, lambda *_: None)


def test_recordings_that_answer_with_something_old_are_found():
    engine = OnePassEngine(SmallPolicy(), 2, TEXT_ROWS, graphs=True, record=lambda program: (lambda: None, program()))
    assert record_passes(engine, lambda *_: None, required=True) != ""
    with pytest.raises(WorkerError, match="other actions in a batch than each frame by itself"):
        warm_up(engine, Shift.ROTATE, lambda *_: None)


def test_damaged_weights_are_found():
    policy = SmallPolicy()
    policy._weight[0, 0] = math.inf
    with pytest.raises(WorkerError, match="not finite"):
        warm_up(engine_of(policy), Shift.ROTATE, lambda *_: None)


def test_made_up_observations_are_what_the_policy_needs():
    first, second = sample_observations(INPUTS, 2, "go", side=16)
    assert {name: (image.height, image.width) for name, image in first.images.items()} == {
        "top": (8, 10),
        "wrist": (16, 16),
    }
    assert first.images["top"].data != second.images["top"].data
    assert first.state == {"joints": (0.0,) * 3, "gripper": (0.0,)}


def test_in_16_bits_and_with_rounded_rows_a_batch_may_move_actions_as_pixels_do():
    policy = SmallPolicy(rounds=3e-3)
    with pytest.raises(WorkerError, match="other actions in a batch than each frame by itself"):
        warm_up(engine_of(policy), Shift.ROTATE, lambda *_: None)
    warm_up(engine_of(policy), Shift.ROTATE, lambda *_: None, rounds=True)
    policy.dtype = torch.bfloat16
    warm_up(engine_of(policy), Shift.ROTATE, lambda *_: None)


def test_one_session_is_not_warmed_up_as_two():
    policy = SmallPolicy()
    warm_up(engine_of(policy, sessions=1), Shift.ROTATE, lambda *_: None)
    assert max(policy.sizes) == 1


def test_batches_are_replayed_and_more_frames_than_the_largest_run_eagerly():
    policy = SmallPolicy()
    frames = [policy.prepare(observation_of(frame(1, seq, text="go " * seq), INPUTS)) for seq in range(1, 7)]
    check_batches(policy, frames, 100, recordings=6)
    assert {1, 2, 4, 5, 6} == set(policy.sizes), "three frames are a batch of four"


def test_a_frame_that_is_not_finite_spoils_no_other_of_its_batch_and_none_after_it():
    policy = SmallPolicy()
    engine = OnePassEngine(policy, 4, TEXT_ROWS, graphs=True, record=Replays())
    frames = [policy.prepare(observation_of(frame(1, seq), INPUTS)) for seq in range(1, 4)]
    broken = policy.prepare(observation_of(frame(1, 1, state=(math.nan, 0.0, 0.0, 0.0)), INPUTS))
    right = chunks(engine, frames)
    found = chunks(engine, [broken, *frames[1:]])
    assert not np.isfinite(found[0]).all()
    assert np.array_equal(found[1:], right[1:]) and np.array_equal(chunks(engine, frames), right)


def test_an_instruction_longer_than_recorded_runs_eagerly():
    policy = SmallPolicy()
    engine = OnePassEngine(policy, 2, TEXT_ROWS, graphs=True, record=Replays())
    long = policy.prepare(observation_of(frame(1, 1, text="go " * (TEXT_ROWS + 1)), INPUTS))
    chunks(engine, [long])
    assert (engine.record.count, engine.graphs.eager_passes, len(engine.graphs)) == (0, 1, 0)
