"""Places of slots that move up: every format against a loop, numbers and scales."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, FP8, INT4, INT8, LATENT, KVFormat, MemoryRules
from edgeflow.kernels.kv.memory import MemoryKV
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules
from tests.random_gates import SIZE, random_gate

CPU = torch.device("cpu")
SLOTS, CAPACITY = 4, 20
GATES = random_gate(LlamaConfig(**SIZE), GateRules(sink=2, window=3, segment=4)).layers
FORMATS = {
    "dense": DENSE,
    "int8": INT8,
    "fp8": FP8,
    "latent": LATENT,
    "memory": MemoryKV(MemoryRules(sink=2, segment=4), GATES, positions=200),
}


def store(kv_format: KVFormat) -> KVSlots:
    """Numbers that tell a place, a head and a layer apart."""
    kv = KVSlots(
        layers=2,
        slots=SLOTS,
        capacity=CAPACITY,
        kv_heads=2,
        head_dim=8,
        dtype=torch.float32,
        device=CPU,
        format=kv_format,
    )
    draw = torch.Generator().manual_seed(1)
    for tensor in kv.tensors:
        tensor.copy_(torch.randint(-127, 128, tensor.shape, generator=draw))
    return kv


def moved(tensors: tuple[Tensor, ...], moves: list[tuple[int, list[int], int]]) -> list[Tensor]:
    """Written out: lines of places alone move, and all are read before any is written."""
    found = [each.clone() for each in tensors]
    for slot, sources, first in moves:
        for at, source in enumerate(sources):
            for kept, tensor in zip(found, tensors, strict=True):
                if tensor.shape[3] == CAPACITY:
                    kept[:, :, slot, first + at] = tensor[:, :, slot, source].clone()
    return found


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[int, list[int], int]]:
    """Of several slots: accepted paths, ascending and with the last row repeated, and any others; both may overlap."""
    width = draw(st.integers(1, 8))
    made = []
    for slot in draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True)):
        first = draw(st.integers(0, CAPACITY - width))
        anywhere = st.lists(st.integers(0, CAPACITY - 1), min_size=width, max_size=width)
        ascending = st.lists(st.integers(first, CAPACITY - 1), min_size=1, max_size=width, unique=True).map(
            lambda rows: [*sorted(rows), *[max(rows)] * (width - len(rows))]
        )
        made.append((slot, draw(anywhere | ascending), first))
    return made


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(moves=moves())
def test_places_move_as_in_the_loop(name: str, moves: list[tuple[int, list[int], int]]):
    kv = store(FORMATS[name])
    expected = moved(kv.tensors, moves)
    slots, sources, firsts = (torch.tensor([each[part] for each in moves]) for part in range(3))
    kv.compact(slots, sources, firsts[:, None])
    assert kv.can_compact and len(kv.tensors) == len(expected)
    assert all(torch.equal(found, want) for found, want in zip(kv.tensors, expected, strict=True))


def test_four_bits_do_not_move_place_by_place():
    kv = KVSlots(
        layers=1,
        slots=1,
        capacity=64,
        kv_heads=1,
        head_dim=8,
        dtype=torch.float32,
        device=CPU,
        format=INT4,
    )
    assert not kv.can_compact
