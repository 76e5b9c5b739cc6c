"""Real-time chunking: the published schedules and gains, what a frame continues, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.flow.frames import FlowSizes, Previous, RTCSettings, Schedule, gain, schedule_weights
from edgeflow_client.errors import ConfigError, InvalidArgument
from tests.engine.flow.tiny_flow import JOINT_SHAPE, TinyFlowPolicy, random_frames


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Schedule.ZEROS, [1, 1, 1, 0, 0, 0]),
        (Schedule.ONES, [1, 1, 1, 1, 1, 1]),
        (Schedule.LINEAR, [1, 1, 1, 0.75, 0.5, 0.25]),
        (Schedule.EXP, [1, 1, 1, 0.4876, 0.1888, 0.0413]),
    ],
)
def test_weights_are_those_published(schedule: Schedule, wanted: list[float]):
    """A chunk of 10, 3 rows passed, drawn to 6."""
    found = schedule_weights(schedule, 3, 6, 7, size=10)
    assert found.tolist() == pytest.approx([*wanted, 0, 0, 0, 0], abs=5e-5)


def test_the_horizon_ends_with_the_chunk_in_execution():
    assert schedule_weights(Schedule.LINEAR, 6, 4, 7, size=10).tolist() == [1] * 4 + [0] * 6
    assert schedule_weights(Schedule.ONES, 1, 10, 4, size=10).tolist() == [1] * 4 + [0] * 6


def test_gains_are_those_published():
    times = [1 - step / 10 for step in range(10)]
    wanted = [10, 9.111, 4.25, 2.762, 2.167, 2, 2.167, 2.762, 4.25, 9.111]
    assert [min(gain(time), 10.0) for time in times] == pytest.approx(wanted, abs=5e-4)
    assert gain(1.0) == math.inf


def engine_of(rtc: RTCSettings | None) -> FlowEngine:
    policy = TinyFlowPolicy(JOINT_SHAPE, rtc=rtc)
    return FlowEngine(policy, 1, 4)


def test_a_frame_continues_what_is_left_of_the_chunk():
    (frame,) = random_frames(JOINT_SHAPE, 1)
    values = np.arange(6.0).reshape(3, 2)
    guidance = engine_of(RTCSettings(execution_horizon=4)).continued(frame, Previous(values, 1)).guidance
    target = torch.zeros(5, 3)
    target[:3, :2] = torch.from_numpy(values)
    assert torch.equal(guidance.target, target)
    assert guidance.weights.tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0, 0])
    assert (guidance.most, guidance.clean, guidance.delay) == (10.0, 0, 1)


def test_a_trained_policy_keeps_the_rows_that_pass():
    (frame,) = random_frames(JOINT_SHAPE, 1)
    engine, values = engine_of(RTCSettings(trained_max_delay=3)), np.ones((4, 3))
    guidance = engine.continued(frame, Previous(values, 2)).guidance
    assert (guidance.clean, guidance.delay, guidance.weights.any()) == (2, 2, torch.tensor(False))
    assert engine.continued(frame, Previous(values, 0)).guidance is None
    with pytest.raises(InvalidArgument, match=r"previous.delay: is 4 rows; it must be 0 to 3"):
        engine.continued(frame, Previous(values, 4))
    with pytest.raises(InvalidArgument, match=r"previous.delay: is 3 rows; 2 are left"):
        engine.continued(frame, Previous(values[:2], 3))


def test_a_policy_that_cannot_continue_begins_afresh():
    (frame,) = random_frames(JOINT_SHAPE, 1)
    assert engine_of(None).continued(frame, Previous(np.ones((2, 3)), 1)) is frame
    assert engine_of(RTCSettings()).continued(frame, Previous(np.ones((0, 3)), 1)).guidance is None


@pytest.mark.parametrize(
    ("values", "delay", "message"),
    [
        (np.ones((6, 3)), 0, r"previous.values: is of shape \[6, 3\]; a chunk has up to 5 rows of up to 3 numbers"),
        (np.ones((5, 4)), 0, r"previous.values: is of shape"),
        (np.full((2, 3), np.nan), 0, r"previous.values: has a number that is not finite"),
        (np.ones((2, 3)), 6, r"previous.delay: is 6 rows; it must be 0 to 5"),
        (np.ones((2, 3)), -1, r"previous.delay: is -1 rows"),
    ],
    ids=["rows", "numbers", "nan", "late", "early"],
)
def test_a_chunk_that_cannot_be_continued_is_rejected(values: np.ndarray, delay: int, message: str):
    (frame,) = random_frames(JOINT_SHAPE, 1)
    with pytest.raises(InvalidArgument, match=message):
        engine_of(RTCSettings()).continued(frame, Previous(values, delay))


def test_rows_after_the_execution_horizon_are_never_said_to_be_continued():
    (frame,) = random_frames(JOINT_SHAPE, 1)
    engine = engine_of(RTCSettings(execution_horizon=2))
    assert engine.continued(frame, Previous(np.ones((4, 3)), 2)).guidance.delay == 2
    with pytest.raises(InvalidArgument, match=r"previous.delay: is 3 rows; only the first 2"):
        engine.continued(frame, Previous(np.ones((4, 3)), 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "COSINE"}, "choose one of ZEROS, ONES, LINEAR, EXP"),
        ({"execution_horizon": 0}, "must be at least 1"),
        ({"max_guidance_weight": 1e3}, "must be 0 to 100"),
        ({"max_guidance_weight": math.nan}, "must be 0 to 100"),
        ({"trained_max_delay": -1}, "must be at least 0"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_rejected_with_the_range(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        RTCSettings(**settings)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"steps": 0}, "steps: is 0; it must be 1 to 100"), ({"candidates": 17}, "candidates: is 17; it must be 1 to 16")],
    ids=str,
)
def test_sizes_out_of_range_are_rejected_with_the_range(sizes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        FlowSizes(**({"steps": 4, "horizon": 5, "dims": 3} | sizes))
