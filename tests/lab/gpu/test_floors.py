"""Floors, random policies and the figures that are held against bars."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from edgeflow.kernels.awq import AwqWeight
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.kernels.triton.awq import AwqChunks
from edgeflow.lab.gpu.bars import H200, figures
from edgeflow.lab.gpu.subjects.floors import (
    A800_BANDWIDTH,
    Ceilings,
    PassFloor,
    attention_work,
    awq_weight_bytes,
    awq_work,
    decoder_work,
    linear_work,
    pipelined_floor_s,
    scaled_ms,
    serial_floor_s,
    vision_work,
)
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_frames, random_policy
from edgeflow.lab.openvla_policy import embed_prefill
from edgeflow.models.llama import LlamaConfig

CPU = torch.device("cpu")
TINY, LARGE = SIZES["tiny"], SIZES["openvla-7b"]


def test_random_policies_repeat_and_frames_differ():
    first, second = (random_policy(TINY, CPU, torch.float32) for _ in range(2))
    frames = random_frames(TINY, first, 2)
    embedded = [
        embed_prefill(policy, frames[0].pixel_values[None], [frames[0].prompt_ids])[0] for policy in (first, second)
    ]
    assert torch.equal(*embedded) and embedded[0].shape == (TINY.rows, 64)
    assert not torch.equal(frames[0].pixel_values, frames[1].pixel_values)


def test_work_counts_weights_once_and_rows_twice():
    text = LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=10,
    )
    size = replace(TINY, name="one", text=text)
    weights = 8 * (8 + 4 + 4 + 8 + 3 * 16)
    assert decoder_work(size, [Span(0, 4, 1)]) == PassFloor(
        2 * weights + 2 * 80 + 4 * 5 * 8, 2 * (weights + 80 + (4 + 2) * 2 * 4)
    )


def test_weights_of_4_bits_are_those_that_the_kernel_reads():
    """A decode row of OpenVLA-7B: the head's 16 bits per weight, 4.3125 of the projections."""
    projections, head = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32064 * 4096
    spans = [Span(0, 276, 1)]
    work, whole = awq_work(LARGE.text, spans, 64), decoder_work(LARGE, spans)
    kept = attention_work(LARGE.text, spans).bytes
    assert awq_weight_bytes(64) == 4.3125 / 8 and work.flops == whole.flops
    assert work.bytes == pytest.approx(projections * 4.3125 / 8 + 2 * head + kept)
    weight = AwqWeight.nearest(torch.randn(64, 896), 64)
    assert AwqChunks.of(weight).nbytes == awq_weight_bytes(64) * 64 * 896


SPANS = [Span(0, 0, 5), Span(1, 3, 4), Span(2, 6, 1)]


def test_the_last_layer_computes_only_sampled_rows():
    """Against the FLOPs of the products that torch runs, without those of attention."""
    table = built_in_table().forcing(linear="gemm")
    decoder = random_policy(TINY, CPU, torch.float32, table=table).decoder
    layout = PackedLayout.of(SPANS, CPU)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hidden = decoder.forward_sampled(torch.randn(10, TINY.text.hidden_size), layout, decoder.kv_slots(3, 16))
        decoder.logits(hidden, "prefill")
    assert linear_work(TINY.text, SPANS).flops == counter.get_flop_counts()["Global"][torch.ops.aten.mm]


def test_attention_of_the_last_layer_has_one_query_per_span():
    """Two layers of causal attention; the second one only for the last rows."""
    first, last = (1 + 2 + 3 + 4 + 5) + (4 + 5 + 6 + 7) + 7, 5 + 7 + 7
    assert TINY.text.num_hidden_layers == 2
    assert attention_work(TINY.text, SPANS).flops == 4 * (first + last) * TINY.text.q_width


def test_floors_of_the_real_shape():
    """7.5 billion parameters: a decode row reads 13 GB of weights, a prefill takes 4 TFLOP."""
    decode = decoder_work(LARGE, [Span(0, LARGE.rows, 1)])
    assert decode.bytes == pytest.approx(13.2e9, rel=0.02) and decode.flops == pytest.approx(13.3e9, rel=0.02)
    assert vision_work(LARGE).flops == pytest.approx(0.40e12, rel=0.05)
    ceilings = Ceilings(bandwidth=4e12, matrix_rate=700e12)
    assert ceilings.floor_s(decode) == decode.bytes / 4e12
    assert 2.5 < serial_floor_s(LARGE, ceilings) / pipelined_floor_s(LARGE, ceilings) < 6


def verdicts(sections: dict) -> dict[str, str]:
    return {row["figure"]: row["verdict"] for row in figures(sections, "openvla-7b")}


def systems(**fps: float) -> dict:
    return {"found": {"systems": [{"system": name, "frames/s": rate} for name, rate in fps.items()]}}


def test_what_was_not_measured_has_no_verdict():
    assert set(verdicts({"policy": {"status": "failed", "error": "no memory"}}).values()) == {"not measured"}


def test_figures_pass_and_miss_their_bars():
    rates = {"serial, graphs": 30.0, "pipelined, rotate, graphs": 80.0, "pipelined, copy, graphs": 70.0}
    sections = {
        "ceilings": {"found": {"copy bytes/s": H200.bandwidth, "matrix FLOP/s": H200.matrix_rate}},
        "policy": systems(**rates, **{"pipelined, rotate": 60.0, "naive pipe": 50.0}),
        "baseline": {"found": {"frames/s": 7.0}},
        "fp8": systems(**{"fp8": 139.0, "model's dtype": 100.0}),
        "chat": {"found": {"requests": [{"model": "qwen2.5-3b", "prompt": 1024, "share of copy bandwidth": 0.7}]}},
    }
    found = verdicts(sections)
    assert found["baseline, plain transformers, frames/s"] == "reported"
    assert found["serial with graphs / baseline"] == "passed"
    assert found["pipelined / serial, both with graphs"] == "passed"
    assert found["pipelined, share of the floor"] == "missed"
    assert found["pipelined / naive pipe, both without graphs"] == "missed"
    assert found["FP8 / model's dtype, pipelined"] == "missed"
    assert found["K = 32: pipelined / serial"] == "not measured"
    assert found["qwen2.5-3b: decode, share of copy bandwidth"] == "passed"
    assert found["qwen2.5-3b: prefill 1024, share of matrix rate"] == "not measured"


def test_a_bar_scales_with_what_pipelining_can_gain_on_the_device():
    """Where memory is slower and arithmetic as fast, a serial decode step costs more and pipelining gains more."""
    slow = {"ceilings": {"found": {"copy bytes/s": H200.bandwidth / 2, "matrix FLOP/s": H200.matrix_rate}}}
    same = {"ceilings": {"found": {"copy bytes/s": H200.bandwidth, "matrix FLOP/s": H200.matrix_rate}}}
    name = "pipelined / serial, both with graphs"
    bars = [next(row["bar"] for row in figures(each, "openvla-7b") if row["figure"] == name) for each in (same, slow)]
    assert bars[0] == pytest.approx(2.55) and bars[1] > 1.1 * bars[0]


def test_the_papers_times_scale_by_bandwidth():
    assert scaled_ms("qwen2.5-3b", 1024, A800_BANDWIDTH) == pytest.approx((28.767, 171.036))
    assert scaled_ms("qwen2.5-3b", 1024, 2 * A800_BANDWIDTH) == pytest.approx((14.3835, 85.518))
    assert scaled_ms("tiny-chat", 1024, 1e12) is None
