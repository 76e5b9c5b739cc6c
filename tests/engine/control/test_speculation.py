"""Frames that draft: whatever is guessed, arrives or shares the device, answers are those of serial decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.contract import Speculation
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, decode_serially, limits_for
from edgeflow.engine.control.warmup import EIGHT_BITS, deviations, nudged
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.lab.verify.offline import decode_arrivals
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.plan import FrameRef, Leaving, Pass, Segment, SlotPosition
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.cases import pairs_by_day
from tests.engine.control.test_lossless import CPU, LOGITS_TOLERANCE, make_frames
from tests.engine.serial_twin import SerialTwin
from tests.tiny_checkpoint import TinySize, write_checkpoint

EXACT = Speculation()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))


@pytest.fixture(scope="module")
def policy(checkpoint) -> OpenVLAPolicy:
    return load_openvla(checkpoint, torch.float32, CPU)


def make_engine(policy: OpenVLAPolicy, sessions: int = 1, **options: bool) -> PolicyEngine:
    """An engine whose memory holds NaN wherever nothing was written."""
    engine = PolicyEngine(policy, policy.K * sessions, capacity=128, keep_logits=True, **options)
    engine.kv.data.fill_(torch.nan)
    return engine


@pytest.fixture(scope="module")
def serial() -> SerialTwin:
    return SerialTwin(make_engine)


def alike(policy: OpenVLAPolicy, count: int, seed: int, each: int = 3) -> list[PreparedFrame]:
    """Frames of which `each` in a row are the same, so that a guess may be right, in part or not at all."""
    return [frame for frame in make_frames(policy, -(-count // each), seed) for _ in range(each)][:count]


def answers(decoded: Sequence[DecodedFrame], session: int = 0) -> dict[FrameRef, DecodedFrame]:
    return {FrameRef(session, 1, seq): each for seq, each in enumerate(decoded, start=1)}


def assert_exact(found: Sequence[DecodedFrame], right: dict[FrameRef, DecodedFrame]) -> None:
    for each in found:
        expected = right[each.sampled.frame]
        assert each.sampled.token_ids == expected.sampled.token_ids
        assert each.sampled.verified == len(each.sampled.token_ids) and each.sampled.finite
        difference = torch.stack(each.logits) - torch.stack(expected.logits)
        assert difference.abs().max() <= LOGITS_TOLERANCE


MODES = [
    [Mode.SPECULATIVE],
    [Mode.SPECULATIVE, Mode.SPECULATIVE],
    [Mode.SPECULATIVE, Mode.PIPELINED, Mode.SERIAL],
    [Mode.DEPTH, Mode.SPECULATIVE, Mode.PIPELINED],
]


@pytest.mark.parametrize(("budget", "modes", "shift"), pairs_by_day([1, 1 << 30], MODES, Shift))
def test_tokens_equal_serial_decoding(policy, serial: SerialTwin, shift: Shift, modes: list[Mode], budget: int):
    streams = [alike(policy, 12 - 2 * session, seed=session, each=1 + session) for session in range(len(modes))]
    limits = limits_for(policy.K, sessions=len(modes), shift=shift, row_budget=budget)
    scheduler = Scheduler(limits)
    engine = make_engine(policy, len(modes))
    results = OfflineRun(engine, scheduler, modes, depth=3).decode(streams)
    for session, (frames, found, mode) in enumerate(zip(streams, results, modes, strict=True)):
        assert_exact(found, answers(serial(policy, frames), session))
        assert mode is Mode.SPECULATIVE or len(found) == len(frames)
        assert found and found[-1].sampled.frame.seq == len(frames), "the newest frame is answered"
    assert scheduler.counts.left[Leaving.OVERTAKEN] == sum(map(len, streams)) - sum(map(len, results))


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    each=st.integers(1, 4),
    shift=st.sampled_from(Shift),
    seed=st.integers(0, 3),
)
def test_any_arrival_pattern(policy, serial: SerialTwin, gaps: list[int], each: int, shift: Shift, seed: int):
    frames = alike(policy, len(gaps), seed, each)
    engine = make_engine(policy)
    run = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [Mode.SPECULATIVE])
    assert_exact(decode_arrivals(run, list(zip(gaps, frames, strict=True))), answers(serial(policy, frames)))


@pytest.mark.parametrize("shift", Shift)
def test_an_answer_of_thirty_two_tokens(tmp_path_factory, shift: Shift):
    path = write_checkpoint(tmp_path_factory.mktemp("wide"), TinySize(actions=32))
    policy = load_openvla(path, torch.float32, CPU)
    assert policy.K == 32
    frames = alike(policy, 6, seed=1)
    engine = PolicyEngine(policy, policy.K, capacity=128, keep_logits=True)
    engine.kv.data.fill_(torch.nan)
    found = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [Mode.SPECULATIVE]).decode([frames])[0]
    right = decode_serially(PolicyEngine(policy, policy.K, capacity=128, keep_logits=True), frames)
    assert_exact(found, {FrameRef(0, 1, seq): each for seq, each in enumerate(right, start=1)})


def test_a_right_guess_is_verified_in_the_prefill_pass(policy):
    frames = alike(policy, 6, seed=8, each=6)
    scheduler = Scheduler(limits_for(policy.K))
    run = OfflineRun(make_engine(policy), scheduler, [Mode.SPECULATIVE])
    found = decode_arrivals(run, [(policy.K, frame) for frame in frames])
    assert len(found) == len(frames)
    first = scheduler.counts.passes - (len(frames) - 1)
    assert 1 < first <= policy.K, "only the first frame needs more than its prefill pass"


@pytest.mark.parametrize("shift", Shift)
def test_a_frame_leaves_after_its_most_passes_with_what_the_last_one_gave(policy, serial: SerialTwin, shift: Shift):
    """The first token is verified by the prompt alone; what follows it in one pass depends on the guess."""
    frames = make_frames(policy, 8, seed=3)
    engine, limits = make_engine(policy), limits_for(policy.K, shift=shift)
    run = OfflineRun(engine, Scheduler(limits), [Mode.SPECULATIVE], speculation=Speculation(max_passes=1))
    found, right = run.decode([frames])[0], answers(serial(policy, frames))
    assert [each.sampled.frame.seq for each in found] == list(range(1, 9)), "none is overtaken"
    unverified = 0
    for each in found:
        sampled = each.sampled
        expected = right[sampled.frame].sampled.token_ids
        assert len(sampled.token_ids) == policy.K and 1 <= sampled.verified <= policy.K
        assert sampled.token_ids[: sampled.verified] == expected[: sampled.verified]
        unverified += sampled.verified < policy.K
    assert unverified > 0


def verified_within(policy: OpenVLAPolicy, bins: int, drafts: list[int], frame: PreparedFrame) -> int:
    """Tokens that a prefill pass verifies when it is given these drafts."""
    engine = make_engine(policy)
    rows = policy.fixed_rows + len(frame.prompt_ids)
    engine.contract.state.ids[1, rows : rows + policy.K - 1] = torch.tensor(drafts)
    scheduler = Scheduler(limits_for(policy.K))
    run = OfflineRun(engine, scheduler, [Mode.SPECULATIVE], speculation=Speculation(bins))
    run.offer(0, 1, frame)
    planned = scheduler.plan(0)
    assert planned is not None
    guessed = replace(planned, segments=(replace(planned.segments[0], guess=SlotPosition(1, rows)),))
    (outcome,) = engine.collect(engine.launch(guessed, {FrameRef(0, 1, 1): frame}))
    assert len(outcome.tokens) + len(outcome.guesses) == policy.K
    return len(outcome.tokens)


@pytest.mark.parametrize("bins", [0, 1, 2])
def test_a_displacement_is_verified_within_the_tolerance(policy, bins: int):
    (frame,) = make_frames(policy, 1, seed=5)
    token = decode_serially(make_engine(policy), [frame])[0].sampled.token_ids[0]
    far = [0] * (policy.K - 2)
    for off in (-3, -2, -1, 0, 1, 2, 3):
        verified = verified_within(policy, bins, [token + off, *far], frame)
        assert (verified > 1) == (abs(off) <= bins)


def test_the_gripper_must_match_exactly(policy):
    """Its token is the last, which nothing drafts; so the dimension before it is made the gripper here."""
    (frame,) = make_frames(policy, 1, seed=5)
    token = decode_serially(make_engine(policy), [frame])[0].sampled.token_ids[0]
    far = [0] * (policy.K - 2)
    near = policy.near
    try:
        policy.near = (False, *near[1:])
        assert verified_within(policy, 2, [token + 1, *far], frame) == 1
        assert verified_within(policy, 2, [token, *far], frame) > 1
    finally:
        policy.near = near


def test_a_frame_that_is_not_finite_leaves_within_its_passes_and_spoils_no_other(policy, serial: SerialTwin):
    frames = alike(policy, 9, seed=7)
    right = answers(serial(policy, frames))
    poisoned = PreparedFrame(torch.full_like(frames[4].pixel_values, torch.nan), frames[4].prompt_ids)
    scheduler = Scheduler(limits_for(policy.K))
    run = OfflineRun(make_engine(policy), scheduler, [Mode.SPECULATIVE])
    found = decode_arrivals(run, [(policy.K, frame) for frame in [*frames[:4], poisoned, *frames[5:]]])
    assert [each.sampled.frame.seq for each in found] == list(range(1, 10))
    assert not found[4].sampled.finite
    assert_exact([each for each in found if each.sampled.frame.seq != 5], right)


def test_no_row_that_is_not_finite_confirms_a_draft(policy):
    """Its token may equal the draft by chance; it leaves after K passes, not at once."""
    (frame,) = make_frames(policy, 1, seed=7)
    poisoned = PreparedFrame(torch.full_like(frame.pixel_values, torch.nan), frame.prompt_ids)
    scheduler = Scheduler(limits_for(policy.K))
    run = OfflineRun(make_engine(policy), scheduler, [Mode.SPECULATIVE])
    found = decode_arrivals(run, [(policy.K, poisoned)] * 2)
    assert [each.sampled.finite for each in found] == [False, False]
    assert scheduler.counts.passes == 2 * policy.K


def test_guesses_that_are_not_finite_are_reported(policy):
    """One pass at most: a frame leaves with guesses, of which none may come from logits that are not finite."""
    frames = make_frames(policy, 2, seed=7)
    poisoned = PreparedFrame(torch.full_like(frames[0].pixel_values, torch.nan), frames[0].prompt_ids)
    limits, speculation = limits_for(policy.K), Speculation(max_passes=1)
    run = OfflineRun(make_engine(policy), Scheduler(limits), [Mode.SPECULATIVE], speculation=speculation)
    assert [each.sampled.finite for each in run.decode([[poisoned, frames[1]]])[0]] == [False, True]


def test_weights_of_eight_bits_meet_all_rows_alike(serial: SerialTwin, checkpoint):
    """As nearly as rows of 8 bits are alike in passes of other shapes, where float32 sums differ in their last bits."""
    table = built_in_table().converting("fp8")
    policy = load_openvla(checkpoint, torch.float32, CPU, table=table)
    frames = alike(policy, 9, seed=2)
    exact = load_openvla(checkpoint, torch.float32, CPU)
    right = answers(serial(policy, frames))
    (found,) = OfflineRun(make_engine(policy), Scheduler(limits_for(policy.K)), [Mode.SPECULATIVE]).decode([frames])
    rounding = deviations(list(right.values()), serial(policy, nudged(frames, EIGHT_BITS)))
    same = [right[each.sampled.frame] for each in found]
    assert found and not deviations(same, found).objection(rounding, torch.float32)
    floats = answers(serial(exact, frames))
    assert any(
        (torch.stack(right[ref].logits[:1]) - torch.stack(floats[ref].logits[:1])).abs().max() > 10 * LOGITS_TOLERANCE
        for ref in right
    ), "these are not the numbers of float weights"


def test_attention_that_reads_places_is_known(policy):
    """Nothing is launched ahead of it without graphs: where rows enter follows from the drafts accepted."""
    hardware, name = Hardware.of(CPU), policy.decoder.name
    assert built_in_table().reads_places(name, "dense", hardware, torch.float32)
    masked = built_in_table().forcing(packed_attention="masked")
    assert not masked.reads_places(name, "dense", hardware, torch.float32)


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_a_finished_frame_in_one_more_pass_stays_in_its_slot(checkpoint, samples: int):
    """It was launched before the host knew. With the longest prompt its rows lie after the last position."""
    table = built_in_table().forcing(packed_attention="masked")
    policy = load_openvla(checkpoint, torch.float32, CPU, table=table)
    engine = PolicyEngine(policy, policy.K, 64, table=table)
    engine.contract.state.length[0] = engine.kv.capacity
    others = engine.kv.data[:, :, 1:].clone(), engine.contract.state.ids[1:].clone()
    ref, start = FrameRef(0, 1, 1), engine.kv.capacity
    segment = Segment(sequence=ref, slot=0, start=start, length=samples, stage=1, samples=samples, certain=False)
    (outcome,) = engine.collect(engine.launch(Pass(0, (segment,)), {}))
    assert len(outcome.tokens) + len(outcome.guesses) == samples
    assert torch.equal(engine.kv.data[:, :, 1:], others[0]) and torch.equal(engine.contract.state.ids[1:], others[1])
