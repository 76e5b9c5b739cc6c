"""Roofline bounds: the code's figures are those of a hand calculation."""

from __future__ import annotations

import pytest

from benchmarks.roofline import DEVICES, OPENVLA, fp8_floor_s
from edgeflow.kernels.kv.layout import Span
from edgeflow.lab.gpu.subjects.floors import (
    attention_work,
    linear_work,
    pipelined_floor_s,
    pipelined_spans,
    text_work,
)


def test_a_decode_row_of_openvla_reads_its_weights_once():
    """Llama-2-7B: 32 layers of 4 x 4096² and 3 x 4096 x 11008, and a head of 32,064 x 4096."""
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32064 * 4096
    work = linear_work(OPENVLA.text, [Span(0, 276, 1)])
    assert (work.flops, work.bytes) == (2 * weights, 2 * weights)


def test_linear_and_attention_are_the_whole_model():
    spans = pipelined_spans(OPENVLA)
    assert text_work(OPENVLA.text, spans) == linear_work(OPENVLA.text, spans) + attention_work(OPENVLA.text, spans)
    assert sum(span.length for span in spans) == OPENVLA.rows + OPENVLA.stages - 1


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_fp8_is_never_faster_than_twice_bf16(device):
    small = fp8_floor_s(OPENVLA, device)
    if device.fp8 is None:
        assert small is None
    else:
        whole = pipelined_floor_s(OPENVLA, device.ceilings)
        assert whole / 2 < small < whole
