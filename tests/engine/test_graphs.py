"""Passes that replay recordings give the tokens of serial decoding, whatever slots, lengths and frames come next."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.executor import Ticket
from edgeflow.engine.graphs import Graphs
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.engine.control.test_lossless import make_engine, make_frames
from tests.engine.control.test_speculation import alike
from tests.engine.recorded_graphs import record
from tests.engine.serial_twin import SerialTwin
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", shift_kv_chain="indexed", linear="gemm")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    torch.set_num_threads(1)
    path = write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))
    return load_openvla(path, torch.float32, CPU, table=ON_THE_DEVICE)


@pytest.fixture(scope="module")
def serial() -> SerialTwin:
    return SerialTwin(partial(make_engine, sessions=1))


def replaying(policy: OpenVLAPolicy, sessions: int = 1, **options) -> PolicyEngine:
    """Memory holds NaN wherever nothing was written."""
    slots = policy.K * sessions
    engine = PolicyEngine(policy, slots, 128, table=ON_THE_DEVICE, graphs=True, record=record, **options)
    engine.kv.data.fill_(torch.nan)
    return engine


def tokens(results) -> list[tuple[int, ...]]:
    assert all(result.sampled.finite for result in results)
    return [result.sampled.token_ids for result in results]


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("modes", [[Mode.SERIAL], [Mode.DEPTH], [Mode.PIPELINED, Mode.SERIAL, Mode.PIPELINED]])
def test_replayed_tokens_equal_serial_decoding(policy, serial: SerialTwin, shift: Shift, modes: list[Mode]):
    engine = replaying(policy, len(modes), shift=shift)
    streams = [make_frames(policy, 10 - 3 * session, seed=session) for session in range(len(modes))]
    assert len({len(frame.prompt_ids) for frame in streams[0]}) == 3, "prompts of several lengths"
    scheduler = Scheduler(limits_for(policy.K, sessions=len(modes), shift=shift))
    results = OfflineRun(engine, scheduler, modes, depth=3).decode(streams)
    for frames, result in zip(streams, results, strict=True):
        assert tokens(result) == tokens(serial(policy, frames))
    assert engine.graphs.eager_passes == 0
    assert len(engine.graphs) < scheduler.counts.passes, "recordings are replayed"


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("modes", [[Mode.SPECULATIVE], [Mode.SPECULATIVE] * 2, [Mode.PIPELINED, Mode.SPECULATIVE]])
def test_replayed_drafts_change_no_token(policy, serial: SerialTwin, shift: Shift, modes: list[Mode]):
    """Segments have as many rows as any of their class; those after their own only pad the pass."""
    engine = replaying(policy, len(modes), shift=shift)
    streams = [alike(policy, 10 - 3 * session, seed=session, each=2) for session in range(len(modes))]
    assert len({len(frame.prompt_ids) for frame in streams[0]}) > 1, "prompts of several lengths"
    scheduler = Scheduler(limits_for(policy.K, sessions=len(modes), shift=shift))
    results = OfflineRun(engine, scheduler, modes).decode(streams)
    for frames, found in zip(streams, results, strict=True):
        right = tokens(serial(policy, frames))
        assert tokens(found) == [right[each.sampled.frame.seq - 1] for each in found] != []
    most = 0 if len(modes) == 1 else scheduler.counts.passes // 4  # those of more segments than are recorded
    assert engine.graphs.eager_passes <= most
    assert len(engine.graphs) < scheduler.counts.passes, "recordings are replayed"


def test_drafts_launched_one_ahead_change_no_token(policy, serial: SerialTwin):
    """The host plans each pass before it knows what the one before verified."""
    frames = alike(policy, 12, seed=3, each=3)
    right = tokens(serial(policy, frames))
    found = decode_one_ahead(replaying(policy), frames, Mode.SPECULATIVE)
    assert found and [answer for _, answer in found] == [right[seq - 1] for seq, _ in found]


def decode_one_ahead(
    engine: PolicyEngine, frames: list[PreparedFrame], mode: Mode = Mode.PIPELINED
) -> list[tuple[int, tuple[int, ...]]]:
    """Each pass is collected when the next one is launched, as a worker with `launch_ahead` does."""
    run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K)), [mode])
    waiting, found = list(enumerate(frames, start=1)), []
    launched: list[Ticket] = []
    while True:
        if waiting and not run.waiting(0):
            run.offer(0, *waiting.pop(0))
        ticket = run.step()
        if launched:
            found += [(each.sampled.frame.seq, each.sampled.token_ids) for each in run.collect(launched.pop())]
        if ticket is None:
            return found
        launched.append(ticket)


def test_a_launch_does_not_overwrite_the_results_of_the_one_before(policy, serial: SerialTwin):
    frames = make_frames(policy, 12, seed=3)
    expected = tokens(serial(policy, frames))
    assert [answer for _, answer in decode_one_ahead(replaying(policy), frames)] == expected


def test_a_frame_that_is_not_finite_does_not_spoil_its_neighbours(policy):
    frames = make_frames(policy, 9, seed=7)
    poisoned = PreparedFrame(torch.full_like(frames[4].pixel_values, torch.nan), frames[4].prompt_ids)
    run = OfflineRun(replaying(policy), Scheduler(limits_for(policy.K)), [Mode.PIPELINED])
    results = run.decode([[*frames[:4], poisoned, *frames[5:]]])[0]
    expected = decode_serially(make_engine(policy, 1), frames)
    assert not results[4].sampled.finite
    assert tokens(results[:4] + results[5:]) == tokens(expected[:4] + expected[5:])


def test_sealed_a_new_shape_runs_eagerly_and_is_counted(policy, serial: SerialTwin):
    engine = replaying(policy)
    frames = make_frames(policy, 9, seed=5)
    expected = tokens(serial(policy, frames))
    assert tokens(decode_serially(engine, frames)) == expected
    shapes = len(engine.graphs)
    engine.graphs.seal()
    run = OfflineRun(engine, Scheduler(limits_for(policy.K)), [Mode.PIPELINED])
    assert tokens(run.decode([frames])[0]) == expected
    assert len(engine.graphs) == shapes and 0 < engine.graphs.eager_passes < len(frames) + policy.K


def test_recordings_are_bounded():
    graphs = Graphs(record, most=2)
    buffer = torch.zeros(3)
    for shape, found in ((1, True), (2, True), (3, False), (1, True)):
        assert (graphs.find(shape, lambda: (buffer, lambda: buffer + 1)) is not None) == found
    assert len(graphs) == 2 and graphs.eager_passes == 1


def test_an_operator_that_reads_places_on_the_host_is_rejected(policy, tmp_path):
    plain = load_openvla(write_checkpoint(tmp_path / "tiny", TinySize(kv_heads=2)), torch.float32, CPU)
    engine = PolicyEngine(plain, plain.K, 128, graphs=True, record=record)
    with pytest.raises(Exception, match="packed_attention: this implementation reads slots on the host"):
        decode_serially(engine, make_frames(plain, 1, seed=0))
