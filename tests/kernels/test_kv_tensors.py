"""Tensors of a KV store whose lines stand for several positions: their memory, copies and moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.kernels.kv.formats import KVShape, KVTensor, slot_bytes
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import built_in_table

CPU = torch.device("cpu")
SLOTS, CAPACITY, GROUP = 4, 22, 4
SHIFTS = [built_in_table().implementation("shift_kv", impl_id).load() for impl_id in ("reference", "strided")]
CHAINS = [
    built_in_table().implementation("shift_kv_chain", impl_id).load() for impl_id in ("reference", "strided", "indexed")
]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Numbers for each position, for each group of positions and for a slot, and some that no move carries."""

    name: str = "grouped"

    def tensors(self, shape: KVShape) -> tuple[KVTensor, ...]:
        def tensor(positions: int, layers: int = shape.layers, moved: bool = True) -> KVTensor:
            return KVTensor(
                layers=layers, kinds=1, heads=2, width=3, dtype=torch.float32, positions=positions, moved=moved
            )

        return tensor(1), tensor(GROUP), tensor(shape.capacity), tensor(1, layers=1, moved=False)

    def layer(self, tensors: tuple[Tensor, ...], index: int) -> Tensor:
        return tensors[0][index]

    def reusable(self, known: int) -> int:
        return known - known % GROUP


def store(shift=SHIFTS[0]) -> KVSlots:
    kv = KVSlots(
        layers=2,
        slots=SLOTS,
        capacity=CAPACITY,
        kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        device=CPU,
        shift=shift,
        format=Grouped(),
    )
    for tensor in kv.tensors:
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    return kv


def moved(tensors: tuple[Tensor, ...], moves: list[tuple[int, int, int]]) -> list[Tensor]:
    """Written out: the lines of every position below the length."""
    found = [each.clone() for each in tensors]
    for source, target, length in moves:
        for position in range(length):
            for tensor, line in zip(found, (position, position // GROUP, 0), strict=False):
                tensor[:, :, target, line] = tensor[:, :, source, line].clone()
    return found


MOVE = st.tuples(st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1), st.integers(0, CAPACITY))


@pytest.mark.parametrize("shift", SHIFTS)
@given(move=MOVE)
def test_a_copy_takes_the_lines_of_its_positions(shift, move):
    kv = store(shift)
    expected = moved(kv.tensors, [move])
    kv.copy_rows(*move)
    assert all(torch.equal(found, wanted) for found, wanted in zip(kv.tensors, expected, strict=True))


@pytest.mark.parametrize("chain", CHAINS)
@given(moves=st.lists(MOVE, min_size=1, max_size=4))
def test_the_moves_of_a_pass_take_the_lines_of_their_positions(chain, moves):
    kv = store()
    expected = moved(kv.tensors, moves)
    kv.move_rows(chain, torch.tensor(moves))
    assert all(torch.equal(found, wanted) for found, wanted in zip(kv.tensors, expected, strict=True))


def test_a_slot_takes_what_its_tensors_take():
    kv = store()
    shape = KVShape(layers=2, capacity=CAPACITY, kv_heads=1, head_dim=1, dtype=torch.float32)
    lines = 2 * CAPACITY + 2 * 6 + 2 * 1 + CAPACITY  # in both layers, and what all layers share
    assert slot_bytes(Grouped(), shape) * SLOTS == kv.nbytes == SLOTS * lines * 2 * 3 * 4
