"""Run by test_triton.py with TRITON_INTERPRET=1: attention over slots of 4 bits where passes follow one another, and
where one pass is replayed at other places, and moves of slots. A JSON line per replay, with the largest difference from
the reference, and one of the moves, with a flag for each tensor of the store."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.shift_kv import chain_reference
from edgeflow.kernels.packed_attention import reference
from edgeflow.kernels.triton.packed_attention import packed_attention_int4
from edgeflow.kernels.triton.shift_kv import shift_kv_chain
from edgeflow.lab.trials import kv_cases
from edgeflow.lab.trials.cases import Heads
from tests.kernels.test_int4_kv import Passes, store

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
    case = kv_cases.attention_int4(RECORDED, HEADS)
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


def move() -> None:
    """Lines of bytes, of 16-bit numbers and of floats: one for each position, for a group, and for the whole slot."""
    stores, moves = (store(), store()), torch.tensor([[1, 2, 40], [0, 1, 33], [2, 0, 0]])
    for ours, theirs in zip(*(kv.tensors for kv in stores), strict=True):
        ours.copy_(torch.randint(0, 100, ours.shape, generator=torch.Generator().manual_seed(2)))
        theirs.copy_(ours)
    before = [tensor.clone() for tensor in stores[0].tensors]
    for kv, chain in zip(stores, (shift_kv_chain, chain_reference), strict=True):
        kv.move_rows(chain, moves)
    same = [torch.equal(*each) for each in zip(*(kv.tensors for kv in stores), strict=True)]
    moved = [not torch.equal(*each) for each in zip(before, stores[0].tensors, strict=True)]
    print(json.dumps({"same": same, "moved": moved}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    follow_one_another()
    replay()
    move()
