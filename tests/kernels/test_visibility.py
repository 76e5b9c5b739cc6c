"""What rows see: the values against sets of places, and every attention that runs here against the values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.kernels.kv import visibility as visibility
from edgeflow.kernels.kv.formats import DENSE, FP8, INT8
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.kernels.narrow_kv.scaled import quantised
from edgeflow.kernels.slots_in_place import slots_in_place
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.trials import visibility as trials
from tests.engine.emulated_device import OTHER, other_device
from tests.kernels.visible_places import seen_spans

CPU = torch.device("cpu")
SLOTS, CAPACITY, WIDTH = 5, 24, 8
TABLE = built_in_table()
ATTENTIONS = [
    (kv, impl_id)
    for kv in (DENSE, INT8, FP8)
    for impl_id in TABLE.candidates("packed_attention", kv.name)
    if impl_id != "triton" and not impl_id.startswith("flashinfer")
]


@settings(max_examples=150, deadline=None)
@given(seen=seen_spans(SLOTS, CAPACITY))
def test_visibility_is_the_set_of_places_that_rows_see(seen):
    spans, parts, wanted = seen
    layout = PackedLayout.of(spans, CPU, visibility=parts)
    found = [set(row.nonzero()[:, 0].tolist()) for row in layout.seen()]
    assert found == wanted
    causal = [row == set(range(place + 1)) for row, place in zip(wanted, layout.row_position.tolist(), strict=True)]
    assert all(
        each or not said for each, said in zip(causal, layout.visibility.causal(layout.row_position), strict=True)
    )
    sampled = layout.of_sampled_rows()
    assert [set(row.nonzero()[:, 0].tolist()) for row in sampled.seen()] == [wanted[row] for row in layout.sampled_rows]


def store(kv_format, spans: list[Span], wanted: list[set[int]], seed: int) -> tuple[KVSlots, torch.Tensor]:
    """Numbers up to the last place that is seen, NaN elsewhere; and the same in float32 [2, S, T, KH, D]."""
    kv = KVSlots(
        layers=1,
        slots=SLOTS,
        capacity=CAPACITY,
        kv_heads=2,
        head_dim=WIDTH,
        dtype=torch.float32,
        device=CPU,
        format=kv_format,
    )
    wide = torch.randn(kv.data.shape[1:], generator=torch.Generator().manual_seed(seed))
    hidden = torch.ones(SLOTS, CAPACITY, dtype=torch.bool)
    rows = [span.slot for span in spans for _ in range(span.length)]
    for slot, places in zip(rows, wanted, strict=True):
        hidden[slot, : max(places) + 1] = False
    if kv_format is not DENSE:
        numbers, kv.tensors[1][0, ..., 0] = quantised(wide, kv_format.numbers)
        kv.data[0] = numbers.view(torch.int8)
        wide = numbers.float() * kv.tensors[1][0]
        kv.tensors[1][0, :, hidden] = torch.nan
    else:
        kv.data[0] = wide
        kv.data[0, :, hidden] = torch.nan
    return kv, wide


def attended(q: torch.Tensor, wide: torch.Tensor, slots: list[int], wanted: list[set[int]]) -> torch.Tensor:
    """Softmax over the places of a set, row by row and head by head."""
    out = torch.empty_like(q)
    for row, (slot, places) in enumerate(zip(slots, wanted, strict=True)):
        own = sorted(places)
        for head in range(q.shape[1]):
            keys, values = wide[:, slot, own, head // (q.shape[1] // wide.shape[3])]
            out[row, head] = (keys @ q[row, head] / WIDTH**0.5).softmax(0) @ values
    return out


@pytest.mark.parametrize(("kv_format", "impl_id"), ATTENTIONS, ids=lambda each: getattr(each, "name", each))
@settings(max_examples=60, deadline=None)
@given(seen=seen_spans(SLOTS, CAPACITY), heads=st.sampled_from([2, 4]), seed=st.integers(0, 99), tile=st.integers(0, 5))
def test_attention_is_over_the_places_that_rows_see(kv_format, impl_id, seen, heads, seed, tile):
    spans, parts, wanted = seen
    kv, wide = store(kv_format, spans, wanted, seed)
    layout = PackedLayout.of(spans, CPU, visibility=parts)
    q = torch.randn(len(wanted), heads, WIDTH)
    expected = attended(q, wide, layout.row_slot.tolist(), wanted)
    attention = TABLE.implementation("packed_attention", impl_id, kv_format.name).load()
    params = {"tile": tile} if impl_id == "slots_in_place" else {}
    torch.testing.assert_close(attention(layout, kv, **params)(q, kv.layer(0)), expected, atol=4e-6, rtol=1e-5)
    alone = layout.of_sampled_rows()
    rows = layout.sampled_rows
    found = attention(alone, kv, **params)(q[rows], kv.layer(0))
    torch.testing.assert_close(found, expected[rows], atol=4e-6, rtol=1e-5)


def test_causal_rows_keep_their_path_beside_others():
    """A decode row that is causal stays in the batch of near slots, and gives the same bits."""
    spans = [Span(0, 9, 1), Span(1, 7, 1), Span(3, 2, 4)]
    parts = [visibility.causal(spans[0]), visibility.causal(spans[1]), trials.window(spans[2], 2)]
    generator = torch.Generator().manual_seed(1)
    kv = KVSlots(layers=1, slots=4, capacity=16, kv_heads=2, head_dim=WIDTH, dtype=torch.float32, device=CPU)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    q = torch.randn(6, 4, WIDTH, generator=generator)
    plain, mixed = (
        slots_in_place(PackedLayout.of(spans, CPU, visibility=each), kv)(q, kv.layer(0)) for each in (None, parts)
    )
    assert torch.equal(plain[:2], mixed[:2]) and not torch.equal(plain[2:], mixed[2:])


def test_slots_in_place_reads_what_rows_see_from_any_device():
    """Rows that see the same, rows under a mask, and places that are not in a line."""
    spans = [Span(0, 9, 4), Span(1, 2, 12)]
    parts = [visibility.before(spans[0], 9), trials.window(spans[1], 3, sinks=1)]
    generator = torch.Generator().manual_seed(3)
    kept = torch.randn(1, 2, 2, 16, 2, WIDTH, generator=generator)
    q = torch.randn(16, 4, WIDTH, generator=generator)

    def attended_on(device: torch.device) -> torch.Tensor:
        kv = KVSlots(layers=1, slots=2, capacity=16, kv_heads=2, head_dim=WIDTH, dtype=torch.float32, device=device)
        kv.data.copy_(kept.view(kv.data.shape).to(device))
        return slots_in_place(PackedLayout.of(spans, device, visibility=parts), kv)(q.to(device), kv.layer(0)).cpu()

    expected = attended_on(CPU)
    with other_device():
        found = attended_on(OTHER)
    torch.testing.assert_close(found, expected, atol=4e-6, rtol=1e-5)


def test_index_tensors_are_aligned_at_any_number_of_rows():
    for rows in (1, 2, 3, 31, 32):
        span = Span(0, 5, rows)
        joined = Visibility.joined([visibility.causal(span), trials.tree_of_drafts(span, range(-1, rows - 1))], CPU)
        for each in (joined.ranges, joined.tree, joined.first):
            assert each.storage_offset() * each.element_size() % 16 == 0 and len(each) == 2 * rows


def test_a_window_in_one_kind_of_layer():
    spans = [Span(0, 0, 6), Span(1, 9, 1)]
    plain = PackedLayout.of(spans, CPU)
    layout = plain.seen_by_kind({"local": [trials.window(span, 3) for span in spans], "global": None})
    assert layout.of_kind("") is layout and layout.of_kind("global").visibility is None
    assert layout.of_kind("local").seen().sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3]
    assert layout.of_sampled_rows().of_kind("local").seen().sum(1).tolist() == [3, 3]
    assert layout.of_sampled_rows().of_kind("other").seen().sum(1).tolist() == [6, 10]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trials.tree_of_drafts(Span(0, 4, 2), (-1, 1)), "row 1 of a tree follows row 1"),
        (lambda: trials.tree_of_drafts(Span(0, 4, 2), (-1,)), "a tree of 1 rows in a span of 2"),
        (lambda: trials.tree_of_drafts(Span(0, 4, 64), range(-1, 63)), "at most 63"),
        (lambda: visibility.bidirectional_prefix(Span(0, 4, 6), 10), "must enter as a whole, not 4 .. 10"),
        (lambda: visibility.bidirectional_prefix(Span(0, 0, 6), 10), "must enter as a whole, not 0 .. 6"),
        (
            lambda: PackedLayout.of([Span(0, 4, 2)], CPU, visibility=[visibility.before(Span(0, 4, 2), 7)]),
            "up to place 7",
        ),
        (lambda: PackedLayout.of([Span(0, 4, 2)], CPU, visibility=[visibility.causal(Span(0, 4, 3))]), "3 rows see"),
    ],
)
def test_impossible_visibility_is_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_layout_without_values_costs_nothing(monkeypatch):
    monkeypatch.setattr(Visibility, "mask", None)
    monkeypatch.setattr(PackedLayout, "seen", None)
    kv = KVSlots(layers=1, slots=1, capacity=16, kv_heads=2, head_dim=WIDTH, dtype=torch.float32, device=CPU)
    layout = PackedLayout.of([Span(0, 0, 4)], CPU)
    assert replace(layout).visibility is None
    slots_in_place(layout, kv)(torch.randn(4, 2, WIDTH), kv.layer(0))
