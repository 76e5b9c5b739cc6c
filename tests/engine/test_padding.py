"""Padding gives few shapes and never costs a GEMM tile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.padding import ROW_STEP, padded_prefills

CAPACITY = 391


def tiles(rows: int, tile: int) -> int:
    return -(-rows // tile)


def test_a_pass_that_fills_its_tiles_is_not_padded():
    assert padded_prefills((250,), 6, CAPACITY) == (250,)
    assert padded_prefills((251,), 5, CAPACITY) == (251,)
    assert padded_prefills((276,), 6, CAPACITY) == (282,)
    assert padded_prefills((), 6, CAPACITY) == ()


@given(st.lists(st.integers(1, CAPACITY - 7), max_size=4), st.integers(0, 40))
def test_padding_stays_within_the_tiles_and_the_slot(prefills: list[int], decodes: int):
    padded = padded_prefills(prefills, decodes, CAPACITY)
    assert all(
        rows <= found <= CAPACITY and found - rows < ROW_STEP for rows, found in zip(prefills, padded, strict=True)
    )
    before, after = sum(prefills) + decodes, sum(padded) + decodes
    assert all(tiles(before, size) == tiles(after, size) for size in (64, 128, 256))
    assert padded_prefills(padded, decodes, CAPACITY) == padded, "a padded pass is its own shape"


def test_prompts_of_any_length_give_few_shapes():
    """Of one session of OpenVLA-7B: 128 prompt lengths behind 256 image tokens, 0 to 6 decode rows."""
    found = {(padded_prefills((rows,), decodes, CAPACITY), decodes) for rows in range(257, 385) for decodes in range(7)}
    assert len(found) <= 9 * 7
