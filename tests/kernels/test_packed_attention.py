"""Every way to attend packed spans gives the reference's rows, whatever lies in the unused parts of the slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.slots_in_place import slots_in_place
from edgeflow.kernels.table.operator_table import built_in_table

CPU = torch.device("cpu")
SLOTS, CAPACITY, HEAD_DIM = 9, 24, 8
CANDIDATES = ["masked", "naive_gather", "slots_in_place"]


@st.composite
def span_lists(draw) -> list[Span]:
    """Spans of distinct slots in any order: prefills, decode rows, chunks and verifications anywhere."""
    slots = draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, SLOTS))]
    spans = []
    for slot in slots:
        length = draw(st.one_of(st.just(1), st.integers(1, 12)))
        spans.append(Span(slot, draw(st.integers(0, CAPACITY - length)), length))
    return spans


def store(spans: list[Span], kv_heads: int, seed: int, dtype: torch.dtype = torch.float32) -> KVSlots:
    """Random keys and values where the spans may look, NaN everywhere else; two layers."""
    generator = torch.Generator().manual_seed(seed)
    kv = KVSlots(
        layers=2, slots=SLOTS, capacity=CAPACITY, kv_heads=kv_heads, head_dim=HEAD_DIM, dtype=dtype, device=CPU
    )
    kv.data.fill_(torch.nan)
    for span in spans:
        used = kv.data[:, :, span.slot, : span.start + span.length]
        used.copy_(torch.randn(used.shape, generator=generator))
    return kv


def attend(name: str, spans: list[Span], kv: KVSlots, q: torch.Tensor, layer: int = 0) -> torch.Tensor:
    function = built_in_table().implementation("packed_attention", name).function
    return function(PackedLayout.of(spans, CPU), kv)(q, kv.layer(layer))


@pytest.mark.parametrize("name", CANDIDATES)
@settings(max_examples=60, deadline=None)
@given(spans=span_lists(), heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]), seed=st.integers(0, 99))
def test_candidates_equal_the_reference(name: str, spans: list[Span], heads: tuple[int, int], seed: int):
    q = torch.randn(sum(span.length for span in spans), heads[0], HEAD_DIM)
    for layer in (0, 1):
        expected = attend("reference", spans, store(spans, heads[1], seed), q, layer)
        found = attend(name, spans, store(spans, heads[1], seed), q, layer)
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(spans=span_lists(), tile=st.sampled_from([0, 1, 2, 5]), seed=st.integers(0, 99))
def test_long_spans_in_tiles_are_the_same(spans: list[Span], tile: int, seed: int):
    q = torch.randn(sum(span.length for span in spans), 4, HEAD_DIM)
    kv = store(spans, 2, seed)
    found = slots_in_place(PackedLayout.of(spans, CPU), kv, tile)(q, kv.layer(0))
    torch.testing.assert_close(found, attend("reference", spans, store(spans, 2, seed), q), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize(
    "spans",
    [[Span(3, 9, 1), Span(2, 4, 1), Span(3, 4, 5)], [Span(3, 5, 1), Span(3, 6, 1), Span(4, 2, 1)]],
    ids=["a chunk and the row after it", "two rows"],
)
def test_several_spans_of_one_slot(name: str, spans: list[Span]):
    q = torch.randn(sum(span.length for span in spans), 4, HEAD_DIM)
    expected = attend("reference", spans, store(spans, 2, 0), q)
    torch.testing.assert_close(attend(name, spans, store(spans, 2, 0), q), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CANDIDATES)
def test_low_precision_stays_near_the_wide_reference(name: str):
    spans = [Span(0, 0, 10), Span(1, 10, 1), Span(3, 11, 1)]
    kv = store(spans, 2, 1, torch.bfloat16)
    q = torch.randn(12, 4, HEAD_DIM).bfloat16()
    wide = store(spans, 2, 1)
    wide.data.copy_(kv.data)
    found = attend(name, spans, kv, q)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), attend("reference", spans, wide, q.float()), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", [*CANDIDATES, "reference"])
def test_a_row_sees_its_own_slot_up_to_itself(name: str):
    """With equal keys attention is the mean of the values seen: their positions tell which were."""
    spans = [Span(5, 0, 3), Span(4, 6, 1), Span(1, 2, 2)]
    kv = KVSlots(
        layers=1, slots=SLOTS, capacity=CAPACITY, kv_heads=1, head_dim=HEAD_DIM, dtype=torch.float32, device=CPU
    )
    kv.data[:, 1] = torch.arange(CAPACITY)[:, None, None] + 100.0 * torch.arange(SLOTS)[:, None, None, None]
    found = attend(name, spans, kv, torch.randn(6, 1, HEAD_DIM))
    assert found[:, 0, 0].tolist() == pytest.approx([500.0, 500.5, 501.0, 403.0, 101.0, 101.5])


def test_slots_in_place_keeps_what_spans_have_written():
    """Clearing stale positions must not touch a row that is still needed."""
    spans = [Span(0, 20, 1), Span(1, 3, 1), Span(2, 0, 5)]
    kv = store(spans, 2, 0)
    before = kv.data.clone()
    slots_in_place(PackedLayout.of(spans, CPU), kv)
    for span in spans:
        end = span.start + span.length
        assert torch.equal(kv.data[:, :, span.slot, :end], before[:, :, span.slot, :end])
