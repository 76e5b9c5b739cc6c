"""Control over KV of fewer bits: in every mode and shift the tokens of serial decoding, over slots that held others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.engine import placement as engine_table
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, limits_for
from edgeflow.engine.memory import widened_bytes, written_bytes
from edgeflow.engine.placement import check_kv
from edgeflow.engine.policy import LoadOptions
from edgeflow.kernels.kv.formats import CONFIGURED, DENSE, FP8, INT4, INT8, KVFormat, KVShape
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.comparison import mismatches_but_ties
from edgeflow.lab.verify.offline import decode_arrivals
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.registry import FAMILIES
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.worker.build import build_engine, kv_need
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode
from tests.cases import pairs_by_day
from tests.engine.control.test_lossless import make_frames
from tests.engine.control.test_speculation import alike
from tests.engine.recorded_graphs import record
from tests.engine.serial_twin import SerialTwin
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
NARROW = [INT8, FP8, INT4]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))


@pytest.fixture(scope="module")
def policy(checkpoint: Path) -> OpenVLAPolicy:
    return load_openvla(checkpoint, torch.float32, CPU)


def make_engine(policy: OpenVLAPolicy, kv_format: KVFormat, sessions: int = 1) -> PolicyEngine:
    """An engine whose memory holds NaN wherever nothing was written."""
    engine = PolicyEngine(policy, policy.K * sessions, 128, kv_format=kv_format, keep_logits=True)
    for tensor in engine.kv.tensors:
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    return engine


@pytest.fixture(scope="module")
def serial() -> SerialTwin:
    return SerialTwin(make_engine)


@pytest.fixture(scope="module")
def replayable(checkpoint: Path) -> dict[KVFormat, tuple[OpenVLAPolicy, OperatorTable]]:
    """Policies whose passes can be recorded, and their tables."""
    found = {}
    for kv_format, written in ((INT8, {}), (INT4, {"rope_write_kv": "on_device"})):
        table = built_in_table().forcing(packed_attention="masked", shift_kv_chain="indexed", linear="gemm", **written)
        found[kv_format] = load_openvla(checkpoint, torch.float32, CPU, table=table), table
    return found


def assert_alike(found: Sequence[DecodedFrame], right: Sequence[DecodedFrame], kv_format: KVFormat) -> None:
    """Of the same frames, those that were overtaken left out."""
    for each in found:
        wanted = right[each.sampled.frame.seq - 1]
        assert each.sampled.finite
        assert not mismatches_but_ties(each.sampled.token_ids, wanted.sampled.token_ids, wanted.logits, kv_format.name)


@pytest.mark.parametrize(
    ("kv_format", "shift", "modes"),
    pairs_by_day(
        NARROW,
        Shift,
        [
            [Mode.PIPELINED],
            [Mode.DEPTH, Mode.PIPELINED, Mode.SERIAL],
            [Mode.SPECULATIVE],
            [Mode.SPECULATIVE, Mode.PIPELINED, Mode.SPECULATIVE],
        ],
    ),
)
def test_tokens_are_those_of_serial_decoding(
    policy, serial: SerialTwin, kv_format: KVFormat, shift: Shift, modes: list[Mode]
):
    streams = [alike(policy, 12 - 3 * session, seed=session, each=1 + session) for session in range(len(modes))]
    limits = limits_for(policy.K, sessions=len(modes), shift=shift)
    engine = make_engine(policy, kv_format, len(modes))
    results = OfflineRun(engine, Scheduler(limits), modes, depth=3).decode(streams)
    for frames, found in zip(streams, results, strict=True):
        assert found and found[-1].sampled.frame.seq == len(frames)
        assert_alike(found, serial(policy, frames, kv_format), kv_format)


@settings(max_examples=10, deadline=None)
@given(
    kv_format=st.sampled_from(NARROW),
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    each=st.integers(1, 4),
    shift=st.sampled_from(Shift),
    mode=st.sampled_from([Mode.SPECULATIVE, Mode.PIPELINED]),
)
def test_any_arrival_pattern(
    policy, serial: SerialTwin, kv_format: KVFormat, gaps: list[int], each: int, shift: Shift, mode: Mode
):
    """Frames that leave early hand their slots to others."""
    frames = alike(policy, len(gaps), 2, each)
    run = OfflineRun(make_engine(policy, kv_format), Scheduler(limits_for(policy.K, shift=shift)), [mode])
    found = decode_arrivals(run, list(zip(gaps, frames, strict=True)))
    assert_alike(found, serial(policy, frames, kv_format), kv_format)


@pytest.mark.parametrize(
    ("kv_format", "shift", "modes"),
    pairs_by_day(
        (INT8, INT4),
        Shift,
        ((Mode.PIPELINED, Mode.SERIAL), (Mode.SPECULATIVE,), (Mode.SPECULATIVE, Mode.SPECULATIVE)),
    ),
)
def test_replayed_tokens_are_those_of_serial_decoding(replayable, serial, kv_format, shift: Shift, modes: tuple[Mode]):
    """Passes are padded to the rows of their class."""
    policy, table = replayable[kv_format]
    slots = policy.K * len(modes)
    engine = PolicyEngine(policy, slots, 128, kv_format=kv_format, table=table, graphs=True, record=record, shift=shift)
    streams = [alike(policy, 10 - 3 * session, seed=session, each=2) for session in range(len(modes))]
    assert len({len(frame.prompt_ids) for frame in streams[0]}) > 1, "prompts of several lengths"
    scheduler = Scheduler(limits_for(policy.K, sessions=len(modes), shift=shift))
    results = OfflineRun(engine, scheduler, modes, depth=3).decode(streams)
    for frames, found in zip(streams, results, strict=True):
        assert_alike(found, serial(policy, frames, kv_format), kv_format)
    assert 0 < len(engine.graphs) < scheduler.counts.passes, "recordings are replayed"


@pytest.mark.parametrize("shift", Shift)
def test_drafts_of_thirty_two_tokens_in_four_bits(serial: SerialTwin, tmp_path_factory, shift: Shift):
    path = write_checkpoint(tmp_path_factory.mktemp("wide"), TinySize(actions=32))
    policy = load_openvla(path, torch.float32, CPU)
    frames = alike(policy, 6, seed=1)
    run = OfflineRun(make_engine(policy, INT4), Scheduler(limits_for(policy.K, shift=shift)), [Mode.SPECULATIVE])
    assert_alike(run.decode([frames])[0], serial(policy, frames, INT4), INT4)


def test_four_bits_serve_no_more_drafts_than_a_group(tmp_path: Path):
    policy = load_openvla(write_checkpoint(tmp_path, TinySize(actions=33)), torch.float32, CPU)
    with pytest.raises(ConfigError, match="int4 serves at most 32 action tokens, this checkpoint has 33"):
        PolicyEngine(policy, policy.K, 128, kv_format=INT4)


@pytest.mark.parametrize(
    ("kv", "told"), [("int4", "int4 serves at most 32 action tokens"), ("fp8", "fp8 needs a CUDA")]
)
def test_a_format_that_cannot_serve_is_rejected_before_a_weight_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str, told: str
):
    monkeypatch.setattr(OpenVLAPolicy, "__init__", lambda *_, **__: pytest.fail("the weights were loaded"))
    path = write_checkpoint(tmp_path, TinySize(actions=33))
    with pytest.raises(ConfigError, match=rf"policy\.kv: {told}"):
        build_engine(ServiceConfig(model=str(path), device="cpu", policy={"kv": kv}))


def test_too_many_action_tokens_for_int4_are_rejected_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OpenVLAPolicy, "__init__", lambda *_, **__: pytest.fail("the weights were loaded"))
    path = write_checkpoint(tmp_path, TinySize(actions=33))
    with pytest.raises(ConfigError, match=r"^kv: int4 serves at most 32 action tokens, this checkpoint has 33"):
        verify_checkpoint(path, [], lambda *_: None, kv="int4", family="openvla")


@pytest.mark.parametrize("kv_format", NARROW, ids=lambda each: each.name)
def test_int8_kv_differs_from_float_kv(policy, serial: SerialTwin, kv_format: KVFormat):
    frames = make_frames(policy, 3, seed=4)
    pairs = zip(serial(policy, frames, kv_format), serial(policy, frames, DENSE), strict=True)
    off = [(one.logits[0] - other.logits[0]).abs().max() / other.logits[0].std() for one, other in pairs]
    assert min(off) > 1e-3 and max(off) < 2


@pytest.mark.parametrize("kv", ["model", "int8", "int4"])
def test_the_configuration_chooses_and_the_forecast_is_what_is_reserved(checkpoint: Path, kv: str):
    config = load_config(None, {"model": str(checkpoint), "device": "cpu", "max_sessions": 2, "policy.kv": kv})
    built = build_engine(config)
    assert built.engine.kv.format is CONFIGURED[kv]
    assert built.rounds == (kv != "model"), "what the warm-up allows"
    family = next(each for each in FAMILIES if each.name == "openvla")
    published = family.load(checkpoint, config.policy.settings, LoadOptions())
    footprint = published.footprint(torch.float32)
    need = kv_need(config, footprint, CPU)
    assert need.kv_bytes(2) == built.engine.kv.nbytes
    assert footprint.kv is not None
    shape = replace(footprint.kv, capacity=need.capacity)
    visited = widened_bytes(CONFIGURED[kv], shape, CPU) + written_bytes(CONFIGURED[kv], shape, spans=1)
    assert need.frame_bytes == need.ring * visited, "a pass writes and reads whole rings"
    assert (need.frame_bytes == 0) == (kv == "model")
    own = family.load(checkpoint, {}, LoadOptions()).footprint(torch.float32).row_bytes
    assert footprint.row_bytes - own == written_bytes(CONFIGURED[kv], shape, rows=1)
    assert (footprint.row_bytes > own) == (kv == "int4")


@pytest.mark.parametrize(
    ("profile", "width", "dtype"),
    pairs_by_day(
        ["cpu", "cuda_sm75", "cuda_sm80", "cuda_sm87", "cuda_sm89", "cuda_sm90"],
        [64, 320],
        [torch.float32, torch.float16, torch.bfloat16],
    ),
)
def test_slots_are_widened_where_the_table_says_so(monkeypatch: pytest.MonkeyPatch, profile: str, width: int, dtype):
    hardware = Hardware.named(profile)
    monkeypatch.setattr(Hardware, "of", lambda device: hardware)
    shape = KVShape(layers=2, capacity=96, kv_heads=2, head_dim=width, dtype=dtype)
    least = {INT8: 80, FP8: 89, INT4: 80}
    for kv_format in CONFIGURED.values():
        key = OperatorKey(op_name="packed_attention", kv=kv_format.name, shape_sig=f"kv=2|d={width}")
        chosen = built_in_table().choose(key, hardware, dtype).implementation.impl_id
        assert (widened_bytes(kv_format, shape, CPU) > 0) == (chosen == "widened")
        by_kernel = kv_format in least and hardware.arch >= least[kv_format] and dtype.itemsize < 4 and width <= 256
        assert (chosen == "widened") == (kv_format is not DENSE and not by_kernel)


def test_a_format_that_is_unknown_is_rejected(checkpoint: Path):
    config = load_config(None, {"model": str(checkpoint), "device": "cpu", "policy.kv": "int5"})
    with pytest.raises(ConfigError, match=r"policy\.kv: must be one of model, int8, fp8, int4, got 'int5'"):
        build_engine(config)


def test_fp8_is_rejected_where_the_device_lacks_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    told = "policy.kv: fp8 needs a CUDA device of compute capability 8.9 or later, this one is cpu x1: choose int8"
    with pytest.raises(ConfigError, match=told):
        build_engine(ServiceConfig(model=str(checkpoint), device="cpu", policy={"kv": "fp8"}))
    monkeypatch.setattr(engine_table, "device_name", lambda device: "a GPU")
    for arch in (87, 89, 90):
        monkeypatch.setattr(Hardware, "of", lambda device, arch=arch: Hardware("cuda", arch))
        if arch < 89:
            with pytest.raises(ConfigError, match=r"^kv: fp8 needs .* this one is a GPU: choose int8"):
                check_kv(FP8, CPU)
        else:
            check_kv(FP8, CPU)
        check_kv(INT4, CPU)
