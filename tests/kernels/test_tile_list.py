"""The work list of packed attention: every row once, whole pointers, parts that fill a device and no more."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.triton.tile_list import SMALL, TILE_FIELDS, Tiles, large_parts_of, parts_of

CPU = torch.device("cpu")
H100 = 132
ORIN = 16


def tiles(lengths: list[int], reach: int, multiprocessors: int = H100, **changes: int) -> Tiles:
    spans = [Span(slot, reach - length, length) for slot, length in enumerate(lengths)]
    sizes = {"kv_heads": 4, "group": 7, "block_m": 64, "splits": 0, **changes}
    return Tiles.of(PackedLayout.of(spans, CPU), CPU, multiprocessors=multiprocessors, **sizes)


@given(
    lengths=st.lists(st.sampled_from([0, 1, 1, 2, 3, 9, 10, 64, 130]), min_size=1, max_size=8).filter(any),
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
    split = [tile for tile in made.attended.tolist() if tile[3] > 1]
    numbers = [(tile[4] + tile[2] * 4 * tile[1] * group, 4 * tile[1] * group) for tile in split]  # first line and lines
    written = [line for first, count in numbers for line in range(first, first + count)]
    assert written == list(range(made.lines)), "no two parts share their place"
    assert made.joins.tolist() == [tile for tile in split if tile[2] == 0]
    ends = set(accumulate(length for length in lengths))
    for tile in made.attended[made.large :].tolist():
        assert tile[1] * group <= SMALL and tile[0] + tile[1] in ends
    assert sum(tile[1] for tile in made.attended[: made.large].tolist() if tile[2] == 0) == sum(
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


LAUNCHES = [
    ([1], 2048, 4, 7),  # Qwen2.5 7B: a decode row
    *(([5], reach, 4, 7) for reach in (2048, 8192, 32768)),  # and four drafts
    ([60], 8192, 4, 7),  # a tree of drafts
    ([5], 2048, 2, 7),  # Qwen2.5 0.5B
    ([50], 828 + 50, 1, 8),  # a step of pi0
]


@pytest.mark.parametrize(("lengths", "reach", "kv_heads", "group"), LAUNCHES)
def test_few_rows_fill_the_device_or_read_few_keys_each(lengths: list[int], reach: int, kv_heads: int, group: int):
    made = tiles(lengths, reach, kv_heads=kv_heads, group=group)
    keys = max(-(-reach // tile[3]) for tile in made.attended.tolist())
    assert len(made.attended) * kv_heads >= H100 or keys <= 256


@pytest.mark.parametrize(
    ("blocks", "reach", "multiprocessors", "parts"),
    [
        (7, 878, H100, 14),  # a step of pi0: a block of keys per part
        (7, 878, ORIN, 2),
        (28, 8192, H100, 9),  # two whole waves; a tenth part would begin a third
        (58, 2048, H100, 2),  # a chunk of 256 rows, chat 0.5B
        (72, 572, H100, 1),  # the prefix of pi0: sums would take longer than keys
        (112, 8192, H100, 1),  # a chunk of 256 rows, chat 7B: the device is nearly full
        (4, 128, H100, 1),
        (132, 1 << 17, H100, 1),  # prefills stay whole
    ],
)
def test_parts_of_large_tiles_gain_more_than_their_sums_cost(blocks: int, reach: int, multiprocessors: int, parts: int):
    assert large_parts_of(blocks, reach, multiprocessors) == parts


@given(blocks=st.integers(1, 5000), reach=st.integers(1, 1 << 17), multiprocessors=st.integers(1, 200))
def test_large_tiles_are_split_only_on_an_idle_device(blocks: int, reach: int, multiprocessors: int):
    parts = large_parts_of(blocks, reach, multiprocessors)
    assert parts == 1 or (parts * blocks <= 2 * multiprocessors and (parts - 1) * 64 < reach)
    assert parts == 1 or blocks < multiprocessors


def test_splits_follow_the_device():
    few, many = (tiles([1], 4096, count) for count in (ORIN, H100))
    assert (len(few.attended), len(many.attended)) == (8, 33)
