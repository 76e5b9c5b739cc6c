"""Run by test_triton.py with TRITON_INTERPRET=1: attention over slots of 4 bits where passes follow one another, and
where one pass is replayed at other places. A JSON line per replay, with the largest difference from the reference."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.packed_attention import reference
from edgeflow.kernels.trials import int4_cases
from edgeflow.kernels.trials.cases import Heads
from edgeflow.kernels.triton.packed_attention import packed_attention_int4
from tests.kernels.test_int4_kv import Passes

CPU = torch.device("cpu")
HEADS = Heads(6, 2, 16)
RECORDED = [Span(0, 130, 1), Span(2, 70, 40), Span(1, 90, 3)]
REPLAYED = [
    RECORDED,
    [Span(1, 31, 1), Span(0, 0, 40), Span(2, 30, 3)],
    [Span(2, 0, 1), Span(1, 27, 40), Span(0, 61, 3)],
]


def follow_one_another() -> None:
    """What slots held before must not be seen; rows that pad a pass follow those of each span."""
    passes = Passes("on_device", "triton")
    passes.run([Span(0, 0, 40), Span(2, 0, 31)], [1, 1])
    passes.run([Span(2, 31, 1), Span(1, 0, 9), Span(0, 40, 30)], [1, 0, 3], padding=5)
    passes.run([Span(0, 66, 4), Span(2, 32, 1)], [4, 1])
    passes.run([Span(1, 9, 70), Span(2, 0, 1)])


def replay() -> None:
    """Slots and positions are data of the device: the host makes its plan once, from the shape."""
    case = int4_cases.packed_attention(RECORDED, HEADS)
    layout, kv = case.problem(CPU, torch.float32).arguments
    recorded = replace(layout, places=None)
    attend = packed_attention_int4(recorded, kv)
    q = torch.randn(len(layout.row_slot), HEADS.query, HEADS.width, generator=torch.Generator().manual_seed(1))
    for spans in REPLAYED:
        now = PackedLayout.of(spans, CPU)
        recorded.row_slot.copy_(now.row_slot)
        recorded.row_position.copy_(now.row_position)
        off = (attend(q, kv.layer(0)) - reference(now, kv)(q, kv.layer(0))).abs().max()
        print(json.dumps({"off": off.item()}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    follow_one_another()
    replay()
