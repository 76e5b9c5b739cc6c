"""The work list of packed attention: every row once, whole pointers, parts that fill a device and no more."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.triton.tile_list import SMALL, TILE_FIELDS, Tiles, parts_of

CPU = torch.device("cpu")
H100 = 132
ORIN = 16


def tiles(lengths: list[int], reach: int, multiprocessors: int = H100, **changes: int) -> Tiles:
    spans = [Span(slot, reach - length, length) for slot, length in enumerate(lengths)]
    sizes = {"kv_heads": 4, "group": 7, "block_m": 64, "splits": 0, **changes}
    return Tiles.of(PackedLayout.of(spans, CPU), CPU, multiprocessors=multiprocessors, **sizes)


@given(
    lengths=st.lists(st.sampled_from([1, 1, 2, 3, 9, 10, 64, 130]), min_size=1, max_size=8),
    group=st.integers(1, 8),
    splits=st.sampled_from([0, 1, 4]),
    reach=st.integers(130, 5000),
)
def test_every_row_is_attended_once_per_part(lengths: list[int], group: int, splits: int, reach: int):
    made = tiles(lengths, reach, group=group, splits=splits)
    by_first: dict[int, list[list[int]]] = {}
    for tile in made.attended.tolist():
        by_first.setdefault(tile[0], []).append(tile)
    covered = [(first, first + same[0][1]) for first, same in sorted(by_first.items())]
    assert covered[0][0] == 0 and covered[-1][1] == sum(lengths)
    assert all(stop == first for (_, stop), (first, _) in pairwise(covered))
    for same in by_first.values():
        assert sorted(tile[2] for tile in same) == list(range(same[0][3])), "every part, once"
    written = sorted(tile[4] + tile[2] for tile in made.attended.tolist() if tile[3] > 1)
    assert written == list(range(made.parts)), "no two parts share their place"
    assert [tile[0] for tile in made.joins.tolist()] == sorted(
        {tile[0] for tile in made.attended.tolist() if tile[3] > 1}
    )
    ends = set(accumulate(length for length in lengths))
    for tile in made.attended[made.large :].tolist():
        assert tile[1] * group <= SMALL and tile[0] + tile[1] in ends
    assert sum(tile[1] for tile in made.attended[: made.large].tolist()) == sum(
        length for length in lengths if length * group > SMALL
    )
    assert all(tile[1] * group <= made.members for tile in made.joins.tolist())


@pytest.mark.parametrize("lengths", [[1], [1, 1], [70, 1], [64, 65, 1, 1, 1]], ids=str)
def test_both_lists_begin_aligned(lengths: list[int]):
    """At a pointer that is no multiple of 16 bytes a kernel is compiled once more: seconds within a pass."""
    made = tiles(lengths, 4096)
    for table in (made.attended, made.joins, made.attended[made.large :]):
        assert table.storage_offset() * table.element_size() % 16 == 0 and table.shape[1] == TILE_FIELDS


@pytest.mark.parametrize(
    ("blocks", "reach", "multiprocessors", "parts"),
    [
        (4, 32768, H100, 66),  # chat 7B, 4 KV heads: two blocks per multiprocessor, not one per 256 keys
        (4, 2048, H100, 32),  # 256 keys per part would give work to 32 of 132
        (2, 1024, H100, 16),  # chat 0.5B: one block of keys per part
        (11 * 32, 391, H100, 1),  # a robot's packed pass fills the device as it is: no second launch
        (6 * 32, 391, H100, 2),
        (32, 391, ORIN, 1),
        (4, 1, H100, 1),
        (5000, 32768, H100, 16),  # full already, but no row walks the whole slot alone
    ],
)
def test_parts_fill_the_device(blocks: int, reach: int, multiprocessors: int, parts: int):
    assert parts_of(blocks, reach, multiprocessors) == parts


@given(blocks=st.integers(1, 5000), reach=st.integers(1, 1 << 17), multiprocessors=st.integers(1, 200))
def test_parts_are_never_shorter_than_a_block_of_keys(blocks: int, reach: int, multiprocessors: int):
    parts = parts_of(blocks, reach, multiprocessors)
    assert parts == 1 or -(-reach // parts) >= 64 or (parts - 1) * 64 < reach
    assert reach <= 2048 * parts
    assert (parts - 1) * blocks < 2 * multiprocessors or (parts - 1) * 2048 < reach


@given(length=st.integers(1, 600))
def test_one_span_is_all_large_or_all_small(length: int):
    """A mixed launch is another compiled kernel: what is left of a prompt must not meet it first while it is served."""
    made = tiles([length], 600)
    assert made.large in (0, len(made.attended))


def test_splits_follow_the_device():
    few, many = (tiles([1], 4096, count) for count in (ORIN, H100))
    assert (len(few.attended), len(many.attended)) == (8, 33)
