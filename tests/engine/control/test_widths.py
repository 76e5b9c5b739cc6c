"""Answers of several widths in one pass: each session's tokens are the first ones of serial decoding alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from edgeflow.contract import Pace, Speculation, StageProgram
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.ipc.messages import OpenSession
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.pace import pace_of
from edgeflow.scheduler.plan import FrameRef, Leaving
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.cases import pairs_by_day
from tests.engine.control.test_lossless import CPU, LOGITS_TOLERANCE, make_engine
from tests.engine.control.test_speculation import alike
from tests.engine.recorded_graphs import record
from tests.engine.serial_twin import SerialTwin
from tests.tiny_checkpoint import TinySize, write_checkpoint
from tests.worker.test_worker import IMAGES, WorkerBench, results
from tests.worker.test_worker import frame as message

ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", shift_kv_chain="indexed", linear="gemm")
KEYS = {"arm": 7, "base": 4}
MODES = (Mode.SERIAL, Mode.DEPTH, Mode.PIPELINED, Mode.SPECULATIVE)
REPLAYED = [
    (Mode.PIPELINED, Mode.PIPELINED),
    (Mode.SPECULATIVE, Mode.SPECULATIVE),
    (Mode.SERIAL, Mode.SPECULATIVE),
]


def statistics(width: int) -> dict[str, object]:
    return {"q01": [-1.0] * width, "q99": [1.0] * width, "mask": [True] * width}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> OpenVLAPolicy:
    torch.set_num_threads(1)
    norm_stats = {key: {"action": statistics(width)} for key, width in KEYS.items()}
    path = write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2), norm_stats=norm_stats)
    return load_openvla(path, torch.float32, CPU, table=ON_THE_DEVICE)


@pytest.fixture(scope="module")
def serial() -> SerialTwin:
    return SerialTwin(partial(make_engine, sessions=1))


def running(
    policy: OpenVLAPolicy, engine: PolicyEngine, modes: tuple[Mode, ...], shift: Shift, speculation: Speculation | None
) -> OfflineRun:
    """A session of each key, in turn."""
    scheduler = Scheduler(limits_for(policy.K, sessions=len(modes), shift=shift))
    for session, (mode, key) in enumerate(zip(modes, KEYS, strict=True)):
        program = policy.program(key)
        scheduler.open(session, 1, pace_of(mode, program.passes, 3, speculation), program)
    return OfflineRun(engine, scheduler, [])


def assert_first(found: list[DecodedFrame], right: list[DecodedFrame], width: int) -> None:
    assert found and found[-1].sampled.frame.seq == len(right), "the newest frame is answered"
    for each in found:
        expected = right[each.sampled.frame.seq - 1]
        assert each.sampled.token_ids == expected.sampled.token_ids[:width]
        assert each.sampled.verified == width and each.sampled.finite
        if each.logits:
            difference = torch.stack(each.logits) - torch.stack(expected.logits[:width])
            assert difference.abs().max() <= LOGITS_TOLERANCE


def test_a_program_is_as_long_as_the_actions_of_its_key(policy):
    assert policy.K == 7
    assert [policy.program(key) for key in KEYS] == [StageProgram.tokens(width) for width in KEYS.values()]


@pytest.mark.parametrize(("one", "other", "shift"), pairs_by_day(MODES, MODES, Shift))
def test_tokens_equal_serial_decoding(policy, serial: SerialTwin, shift: Shift, one: Mode, other: Mode):
    modes = one, other
    streams = [alike(policy, 11 - 2 * session, seed=session, each=1 + session) for session in range(len(modes))]
    run = running(policy, make_engine(policy, len(modes)), modes, shift, None)
    for found, frames, width, mode in zip(run.decode(streams), streams, KEYS.values(), modes, strict=True):
        assert_first(found, serial(policy, frames), width)
        assert mode is Mode.SPECULATIVE or len(found) == len(frames)


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("modes", REPLAYED, ids="-".join)
def test_replayed_tokens_equal_serial_decoding(policy, serial: SerialTwin, shift: Shift, modes: tuple[Mode, ...]):
    engine = PolicyEngine(policy, policy.K * 2, 128, table=ON_THE_DEVICE, graphs=True, record=record, shift=shift)
    engine.kv.data.fill_(torch.nan)
    streams = [alike(policy, 9 - 2 * session, seed=session, each=2) for session in range(len(modes))]
    run = running(policy, engine, modes, shift, None)
    for found, frames, width in zip(run.decode(streams), streams, KEYS.values(), strict=True):
        assert_first(found, serial(policy, frames), width)
    assert len(engine.graphs) < run.scheduler.counts.passes, "recordings are replayed"


@pytest.mark.parametrize("shift", Shift)
def test_drafts_launched_one_ahead_change_no_token(policy, shift: Shift):
    """The host plans each pass before it knows what the one before verified: a narrow answer may go past its end."""
    engine = PolicyEngine(policy, policy.K * 2, 128, table=ON_THE_DEVICE, graphs=True, record=record, shift=shift)
    engine.kv.data.fill_(torch.nan)
    streams = [alike(policy, 12, seed=session, each=3) for session in range(2)]
    right = [[each.sampled.token_ids for each in decode_serially(make_engine(policy, 1), frames)] for frames in streams]
    run = running(policy, engine, (Mode.SPECULATIVE,) * 2, shift, None)
    waiting = [list(enumerate(frames, start=1)) for frames in streams]
    launched, answered = [], 0
    while True:
        for session, frames in enumerate(waiting):
            if frames and not run.waiting(session):
                run.offer(session, *frames.pop(0))
        ticket = run.step()
        for each in run.collect(launched.pop()) if launched else ():
            frame, width = each.sampled.frame, list(KEYS.values())[each.sampled.frame.session]
            assert each.sampled.token_ids[:width] == right[frame.session][frame.seq - 1][:width]
            answered += 1
        if ticket is None:
            break
        launched.append(ticket)
    left = run.scheduler.counts.left
    assert answered == left[Leaving.DONE] == sum(map(len, streams)) - left[Leaving.OVERTAKEN]


@pytest.mark.parametrize("paces", [(Pace(1), Pace(7)), (Pace(4), Pace(0, Speculation()))])
def test_a_worker_serves_each_session_as_wide_as_its_key(policy, paces: tuple[Pace, Pace]):
    bench = WorkerBench(policy)
    for session, (key, pace) in enumerate(zip(KEYS, paces, strict=True), start=1):
        bench.tell(OpenSession(session=session, epoch=1, pace=pace, unnorm_key=key))
    for seq in range(1, 6):
        bench.tell(*(message(seq, session=session) for session in (1, 2)))
        bench.run(policy.K)
    said = results(bench.drain())
    frames = [PreparedFrame(policy.preprocess(IMAGES[seq]), policy.prompt_ids("go")) for seq in range(1, 6)]
    right = [each.sampled.token_ids for each in decode_serially(make_engine(policy, 1), frames)]
    for session, width in enumerate(KEYS.values(), start=1):
        own = [each for each in said if each.session == session]
        assert [each.seq for each in own] == list(range(1, 6))
        for each in own:
            assert tuple(each.token_ids) == right[each.seq - 1][:width]
            assert (each.chunk.dims, each.settled) == (width, width)
            assert each.passes == width or paces[session - 1].speculation


def test_a_narrow_frame_leaves_after_its_most_passes(policy):
    frames = alike(policy, 8, seed=3, each=1)
    run = running(policy, make_engine(policy, 2), (Mode.SPECULATIVE,) * 2, Shift.ROTATE, Speculation(max_passes=1))
    right = decode_serially(make_engine(policy, 1), frames)
    for found, width in zip(run.decode([frames, frames]), KEYS.values(), strict=True):
        assert [each.sampled.frame.seq for each in found] == list(range(1, 9)), "none is overtaken"
        for each, expected in zip(found, right, strict=True):
            verified = each.sampled.verified
            assert 1 <= verified <= width == len(each.sampled.token_ids)
            assert each.sampled.token_ids[:verified] == expected.sampled.token_ids[:verified]


@pytest.mark.parametrize("rows", [(7, 4), (4, 7)])
def test_prompts_with_more_and_fewer_drafts_share_a_pass(policy, rows: tuple[int, int]):
    """Each has the drafts of its own answer, whichever comes first."""
    frames = alike(policy, 2, seed=6, each=1)
    scheduler = Scheduler(limits_for(policy.K, sessions=2))
    for session, width in enumerate(rows):
        scheduler.open(session, 1, pace_of(Mode.SPECULATIVE, width), StageProgram.tokens(width))
    run = OfflineRun(make_engine(policy, 2), scheduler, [])
    for session, frame in enumerate(frames):
        run.offer(session, 1, frame)
    ticket = run.step()
    assert ticket is not None
    drafts = {segment.sequence: segment.drafts for segment in ticket.planned.segments}
    assert drafts == {FrameRef(session, 1, 1): width - 1 for session, width in enumerate(rows)}
    outcomes = run.engine.collect(ticket)
    assert [len(each.tokens) + len(each.guesses) for each in outcomes] == [
        drafts[each.sequence] + 1 for each in outcomes
    ]
