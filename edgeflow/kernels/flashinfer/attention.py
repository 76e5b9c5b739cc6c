"""Packed attention by FlashInfer over slots seen as pages, without a copy.

A pass whose slots the host knows is planned when its first layer attends; the plan serves all layers and divides long
slots among blocks. A pass that a graph captures is planned once, for its shape: a slot is one page of which the device
says how much is used, so nothing depends on where the rows go, and nothing divides a slot.

Rows that are not causal are served by the prefill wrapper with a mask, where the host knows the slots. In a graph, and
by BatchAttention, they are rejected.

A store's slots of T positions are pages of P positions, P a divisor of T: page j of slot s is page s * T / P + j of the
same memory. FlashInfer divides long slots among blocks by whole pages, so pages are short; a capacity that is a
multiple of PAGE_ROWS gives the fewest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import flashinfer
import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout, Span, on_device
from edgeflow.kernels.kv.slots import PAGE_ROWS, KVSlots
from edgeflow.kernels.packed_attention import Attend
from edgeflow_client.errors import ConfigError

WORKSPACE_BYTES = 128 << 20  # for parts of divided slots, as FlashInfer recommends
PLAN_BYTES = 1 << 20  # of a plan for one shape: a few numbers a tile
WIDTHS = (64, 128, 256)
BACKEND = "fa2"  # runs everywhere from sm_80, compiles without further headers


AttendInto = Callable[[Tensor, DenseLayer, Tensor], None]
"""(q, layer, out): attention of q is written to out"""


class PlannedWrapper(Protocol):
    """A planned wrapper: q [L_Q, H, D] over pages of keys and of values, written to out [L_Q, H, D]"""

    def __call__(self, q: Tensor, pages: tuple[Tensor, Tensor], *, out: Tensor) -> object: ...


class PagedAttention:
    """The wrappers of one store, for as long as it lives: one for passes with longer spans, one for decode rows only.

    Each plan overwrites the one before, so passes over a store run one after the other, and kinds of layers that see
    different places are planned again and again.
    """

    def __init__(self, kv: KVSlots, *, tensor_cores: bool) -> None:
        self._device = kv.data.device
        self._capacity = kv.capacity
        room = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._longer = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=BACKEND)
        self._single = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            room, "NHD", use_tensor_cores=tensor_cores, backend=BACKEND
        )
        self._copied: dict[bool, torch.cuda.Event] = {}  # True: the plan of a pass of decode rows only
        self._planned: dict[bool, PackedLayout] = {}

    def holds(self, layout: PackedLayout) -> bool:
        """True while the last plan is that of this layout."""
        return self._planned.get(_single(layout)) is layout

    def planned(self, layout: PackedLayout, spans: Sequence[Span], q: Tensor, kv_heads: int) -> PlannedWrapper:
        """The wrapper for a layout of these spans, planned."""
        spans, mask = (spans, None) if layout.visibility is None else _masked(layout)
        table = PageTable.of(spans, self._capacity)
        pages, last = self._host(table.pages), self._host(table.last)
        indices = on_device(table.indices, self._device, torch.int32)
        sizes = q.shape[1], kv_heads, q.shape[2], page_size(self._capacity)
        types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
        single = _single(layout)
        wrapper = self._single if single else self._longer
        self._wait(single)
        if single:
            wrapper.plan(pages, indices, last, *sizes, **types)
        else:
            wrapper.plan(
                self._host(table.rows), pages, indices, last, *sizes, custom_mask=mask, causal=mask is None, **types
            )
        self._mark(single)
        self._planned[single] = layout
        run: PlannedWrapper = wrapper.run
        return run

    def _host(self, values: list[int]) -> Tensor:
        """A tensor that the planner reads; pinned, so that its copy to the device does not wait for earlier work."""
        return torch.tensor(values, dtype=torch.int32, pin_memory=self._device.type == "cuda")

    def _wait(self, single: bool) -> None:
        """Each wrapper plans in its own pinned buffer: wait until the last copy has left that buffer."""
        if single in self._copied:
            self._copied[single].synchronize()

    def _mark(self, single: bool) -> None:
        if self._device.type == "cuda":
            self._copied[single] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[single].record(torch.cuda.current_stream(self._device))


class OneShape:
    """A wrapper planned once for the lengths of a layout, with one page per slot; made before a graph is captured."""

    def __init__(self, layout: PackedLayout, q: Tensor, slots: Tensor) -> None:
        count, device = len(layout.lengths), q.device
        room, plan = (torch.zeros(PLAN_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
        rows = torch.tensor([0, *layout.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
        self._final = rows[1:].long() - 1  # the last row of each span, padding included
        pages = torch.arange(count + 1, dtype=torch.int32, device=device)
        self._slots = torch.zeros(count, dtype=torch.int32, device=device)
        self._ends = torch.ones(count, dtype=torch.int32, device=device)
        self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=BACKEND)
        self._wrapper.reset_workspace_buffer(room, plan)
        self._wrapper.plan(
            qo_indptr=rows,
            paged_kv_indptr=pages,
            paged_kv_indices=self._slots,
            paged_kv_last_page_len=self._ends,
            num_qo_heads=q.shape[1],
            num_kv_heads=slots.shape[2],
            head_dim_qk=q.shape[2],
            page_size=slots.shape[1],
            causal=True,
            q_data_type=q.dtype,
            kv_data_type=q.dtype,
            disable_split_kv=True,
        )

    def placed(self, layout: PackedLayout) -> PlannedWrapper:
        """The wrapper over the slots and positions that the device holds now, read from the same memory each time."""
        self._slots.copy_(layout.row_slot[self._final])
        self._ends.copy_(layout.row_position[self._final] + 1)
        run: PlannedWrapper = self._wrapper.run
        return run


class MixedAttention:
    """BatchAttention: one persistent kernel for prefills and decode rows. Planning waits for the device."""

    def __init__(self, kv: KVSlots) -> None:
        self._device = kv.data.device
        self._capacity = kv.capacity
        self._attention = flashinfer.BatchAttention("NHD", str(self._device))

    def holds(self, layout: PackedLayout) -> bool:  # noqa: ARG002
        """True: all layers of a pass have the same visibility."""
        return True

    def planned(self, layout: PackedLayout, spans: Sequence[Span], q: Tensor, kv_heads: int) -> PlannedWrapper:  # noqa: ARG002
        """The kernel, planned for a pass."""
        table = PageTable.of(spans, self._capacity)
        rows, pages, indices, ends = (
            on_device(values, self._device, torch.int32)
            for values in (table.rows, table.pages, table.indices, table.ends)
        )
        width = q.shape[2]
        self._attention.plan(
            qo_indptr=rows,
            kv_indptr=pages,
            kv_indices=indices,
            kv_len_arr=ends,
            num_qo_heads=q.shape[1],
            num_kv_heads=kv_heads,
            head_dim_qk=width,
            head_dim_vo=width,
            page_size=page_size(self._capacity),
            causal=True,
            q_data_type=q.dtype,
            kv_data_type=q.dtype,
        )
        run: PlannedWrapper = self._attention.run
        return run


def packed_attention(layout: PackedLayout, kv: KVSlots, *, tensor_cores: int = 1, apart: int = 0) -> Attend:
    """tensor_cores: use them for decode rows only; without them groups of 1, 2, 3, 4, 6 or 8 queries are served.

    apart: decode rows that follow prefills are planned and launched separately, in a query tile of their size.
    """
    parts = _divided(layout) if apart else [(slice(None), layout)]
    attends = [(rows, _part(part, kv, tensor_cores)) for rows, part in parts]

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        q = q.contiguous()
        out = torch.empty_like(q)
        for rows, attend_part in attends:
            attend_part(q[rows], layer, out[rows])
        return out

    return attend


def packed_attention_mixed(layout: PackedLayout, kv: KVSlots) -> Attend:
    """Attention by BatchAttention; rejected in a graph, and for rows that are not causal."""
    _check_causal(layout, "flashinfer_mixed")
    attend_into = _attending(layout, kv.kept("flashinfer mixed", MixedAttention))

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        q = q.contiguous()
        out = torch.empty_like(q)
        attend_into(q, layer, out)
        return out

    return attend


def _divided(layout: PackedLayout) -> list[tuple[slice, PackedLayout]]:
    """Prefills and the decode rows after them, as layouts over the same memory; one layout where the order differs.

    Only what depends on nothing but lengths is cached: the layout itself may be gathered anew per call.
    """
    count = sum(length > 1 for length in layout.lengths)
    rows = sum(layout.lengths[:count])
    if not 0 < count < len(layout.lengths) or any(length > 1 for length in layout.lengths[count:]):
        return [(slice(None), layout)]
    cuts = (slice(rows), slice(count)), (slice(rows, None), slice(count, None))
    return [
        (
            of_rows,
            replace(
                layout,
                lengths=layout.lengths[of_spans],
                row_slot=layout.row_slot[of_rows],
                row_position=layout.row_position[of_rows],
                rope_position=layout.rope_position[:, of_rows],
                sampled_rows=layout.sampled_rows[:0],
                places=layout.places and layout.places[of_spans],
                visibility=layout.visibility and layout.visibility.of_rows(of_rows),
            ).sharing(layout, ("flashinfer part", index)),
        )
        for index, (of_rows, of_spans) in enumerate(cuts)
    ]


def _part(layout: PackedLayout, kv: KVSlots, tensor_cores: int) -> AttendInto:
    if layout.places is None:
        _check_causal(layout, "flashinfer in a graph")
        return _held(layout)
    planner = kv.kept(f"flashinfer {tensor_cores}", partial(PagedAttention, tensor_cores=bool(tensor_cores)))
    return _attending(layout, planner)


def _single(layout: PackedLayout) -> bool:
    """True where the decode wrapper serves: it takes no mask."""
    return layout.visibility is None and all(length == 1 for length in layout.lengths)


def _masked(layout: PackedLayout) -> tuple[list[Span], Tensor]:
    """Spans that end with the last place that their rows see, and the rows of the mask [length, end], one span after
    the other. The host waits for the device."""
    spans: list[Span] = []
    masks: list[Tensor] = []
    for span, seen in zip(layout.spans, torch.split(layout.seen(), list(layout.lengths)), strict=True):
        end = 1 + int(seen.any(0).nonzero().max())
        spans.append(Span(span.slot, end - span.length, span.length))
        masks.append(seen[:, :end].flatten())
    return spans, torch.cat(masks)


def _attending(layout: PackedLayout, planner: PagedAttention | MixedAttention) -> AttendInto:
    run: PlannedWrapper | None = None
    spans = layout.spans

    def attend(q: Tensor, layer: DenseLayer, out: Tensor) -> None:
        nonlocal run
        if run is None or not planner.holds(layout):
            _check(q)
            run = planner.planned(layout, spans, q, layer.keys.shape[2])
        run(q, (as_pages(layer.keys), as_pages(layer.values)), out=out)

    return attend


def _held(layout: PackedLayout) -> AttendInto:
    run: PlannedWrapper | None = None

    def attend(q: Tensor, layer: DenseLayer, out: Tensor) -> None:
        nonlocal run
        if run is None:
            _check(q)
            name = "flashinfer", q.dtype, *q.shape[1:], *layer.keys.shape
            run = layout.kept(name, lambda: OneShape(layout, q, layer.keys)).placed(layout)
        run(q, (layer.keys, layer.values), out=out)

    return attend


def _check_causal(layout: PackedLayout, name: str) -> None:
    if layout.visibility is not None:
        raise ConfigError(
            f"operator packed_attention: {name} serves only causal rows, and rows of this pass see other places: name "
            "another implementation in the overlay"
        )


def _check(q: Tensor) -> None:
    if q.shape[2] not in WIDTHS:
        raise ConfigError(
            f"operator packed_attention: flashinfer takes heads of 64, 128 or 256 numbers, not {q.shape[2]}: "
            "name another implementation in the overlay"
        )


@dataclass(frozen=True, slots=True)
class PageTable:
    """The N spans of a pass, in their order."""

    rows: list[int]
    """[N + 1]: the first query of each span."""
    pages: list[int]
    """[N + 1]: the first entry of each span in `indices`."""
    indices: list[int]
    """The pages of all spans."""
    last: list[int]
    """[N]: positions used of the last page of each span, 1 .. P."""
    ends: list[int]
    """[N]: the number of keys that the last query of each span sees."""

    @classmethod
    def of(cls, spans: Sequence[Span], capacity: int) -> PageTable:
        """capacity: T, positions per slot."""
        size = page_size(capacity)
        rows, pages, indices = [0], [0], list[int]()
        ends = [span.start + span.length for span in spans]
        for span, end in zip(spans, ends, strict=True):
            first = span.slot * (capacity // size)
            indices += range(first, first + -(-end // size))
            rows.append(rows[-1] + span.length)
            pages.append(len(indices))
        return cls(rows, pages, indices, [(end - 1) % size + 1 for end in ends], ends)


def page_size(capacity: int) -> int:
    """P: the largest power of two up to PAGE_ROWS that divides a slot's capacity."""
    return math.gcd(capacity, PAGE_ROWS)


def as_pages(slots: Tensor) -> Tensor:
    """[S, T, KH, D] → [S * T / P, P, KH, D], the same memory."""
    return slots.view(-1, page_size(slots.shape[1]), *slots.shape[2:])
