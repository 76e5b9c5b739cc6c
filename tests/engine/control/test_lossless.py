"""The rule: whatever the mode, shift, sessions and arrivals, a frame's tokens are those of serial decoding alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.packed_attention import naive_gather, reference
from edgeflow.kernels.slots_in_place import slots_in_place
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.lab.verify.offline import decode_arrivals
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.cases import pairs_by_day
from tests.engine.serial_twin import SerialTwin
from tests.tiny_checkpoint import TinySize, write_checkpoint

LOGITS_TOLERANCE = 1e-4
INSTRUCTIONS = ("go", "pick up the red cup", "put the spoon on the towel, then stop")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))


@pytest.fixture(scope="module")
def policy(checkpoint):
    return load_openvla(checkpoint, torch.float32, CPU)


def make_engine(policy: OpenVLAPolicy, sessions: int) -> PolicyEngine:
    """An engine whose memory holds NaN wherever nothing was written."""
    engine = PolicyEngine(policy, policy.K * sessions, capacity=128, keep_logits=True)
    engine.kv.data.fill_(torch.nan)
    return engine


@pytest.fixture(scope="module")
def serial() -> SerialTwin:
    return SerialTwin(partial(make_engine, sessions=1))


def make_frames(policy: OpenVLAPolicy, count: int, seed: int) -> list[PreparedFrame]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 20, 30, 3), np.uint8)
    ids = [policy.prompt_ids(INSTRUCTIONS[generator.integers(len(INSTRUCTIONS))]) for _ in images]
    return [PreparedFrame(policy.preprocess(image), prompt) for image, prompt in zip(images, ids, strict=True)]


def assert_equal(results: list[DecodedFrame], expected: list[DecodedFrame]) -> None:
    assert [result.sampled.token_ids for result in results] == [result.sampled.token_ids for result in expected]
    for result, reference_result in zip(results, expected, strict=True):
        difference = torch.stack(result.logits) - torch.stack(reference_result.logits)
        assert difference.abs().max() <= LOGITS_TOLERANCE
        assert result.sampled.finite


MODES = [
    [Mode.SERIAL],
    [Mode.PIPELINED],
    [Mode.DEPTH],
    [Mode.PIPELINED, Mode.SERIAL, Mode.PIPELINED],
    [Mode.DEPTH, Mode.PIPELINED, Mode.DEPTH],
]  # speculative: tests/engine/control/test_speculation.py


@pytest.mark.parametrize(("budget", "modes", "shift"), pairs_by_day([1, 1 << 30], MODES, Shift))
def test_tokens_equal_serial_decoding(policy, serial: SerialTwin, shift: Shift, modes: list[Mode], budget: int):
    streams = [make_frames(policy, 12 - 3 * session, seed=session) for session in range(len(modes))]
    limits = limits_for(policy.K, sessions=len(modes), shift=shift, row_budget=budget)
    results = OfflineRun(make_engine(policy, len(modes)), Scheduler(limits), modes, depth=3).decode(streams)
    for frames, result in zip(streams, results, strict=True):
        assert_equal(result, serial(policy, frames))


@pytest.mark.parametrize("attention", [naive_gather, slots_in_place])
def test_attention_candidates_give_the_reference_tokens(checkpoint, policy, attention):
    frames = make_frames(policy, 9, seed=5)
    plain = load_openvla(checkpoint, torch.float32, CPU, attention=reference)
    candidate = load_openvla(checkpoint, torch.float32, CPU, attention=attention)
    run = OfflineRun(make_engine(candidate, 1), Scheduler(limits_for(policy.K)), [Mode.PIPELINED])
    assert_equal(run.decode([frames])[0], decode_serially(make_engine(plain, 1), frames))


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    depth=st.integers(1, 7),
    shift=st.sampled_from(Shift),
    seed=st.integers(0, 3),
)
def test_any_arrival_pattern(policy, serial: SerialTwin, gaps: list[int], depth: int, shift: Shift, seed: int):
    """Frames arrive after a number of idle passes each; the pipeline fills, stalls and drains on the way."""
    frames = make_frames(policy, len(gaps), seed)
    run = OfflineRun(make_engine(policy, 1), Scheduler(limits_for(policy.K, shift=shift)), [Mode.DEPTH], depth)
    results = decode_arrivals(run, list(zip(gaps, frames, strict=True)))
    assert_equal(results, serial(policy, frames))


def test_a_frame_that_is_not_finite_does_not_spoil_its_neighbours(policy):
    frames = make_frames(policy, 9, seed=7)
    expected = decode_serially(make_engine(policy, 1), frames)
    poisoned = PreparedFrame(torch.full_like(frames[4].pixel_values, torch.nan), frames[4].prompt_ids)
    run = OfflineRun(make_engine(policy, 1), Scheduler(limits_for(policy.K)), [Mode.PIPELINED])
    results = run.decode([[*frames[:4], poisoned, *frames[5:]]])[0]
    assert not results[4].sampled.finite
    assert_equal(results[:4] + results[5:], expected[:4] + expected[5:])
