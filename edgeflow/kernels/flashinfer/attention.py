"""Packed attention by FlashInfer over slots seen as pages, without a copy.

What a pass needs is planned on the host when it is first asked to attend, and serves all layers. The wrappers and their
workspace live as long as the store; a plan writes over the one before, so passes over a store run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flashinfer
import torch
from torch import Tensor

from edgeflow.errors import ConfigError
from edgeflow.kernels.flashinfer.pages import PageTable, as_pages, page_size
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span, on_device
from edgeflow.kernels.packed_attention import Attend

WORKSPACE_BYTES = 128 << 20  # for parts of split slots, as FlashInfer recommends
WIDTHS = (64, 128, 256)
BACKEND = "fa2"  # runs everywhere from sm_80, compiles without further headers


class Paged:
    """The wrappers of one store: of passes with longer spans, and of decode rows alone."""

    def __init__(self, kv: KVSlots) -> None:
        self._device = kv.data.device
        self._capacity = kv.capacity
        room = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._longer = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=BACKEND)
        self._single = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            room, "NHD", use_tensor_cores=True, backend=BACKEND
        )
        self._copied: torch.cuda.Event | None = None

    def planned(self, spans: Sequence[Span], q: Tensor, kv_heads: int) -> Any:
        """The wrapper that serves a pass, planned for it."""
        table = PageTable.of(spans, self._capacity)
        pages, last = self._host(table.pages), self._host(table.last)
        indices = on_device(table.indices, self._device, torch.int32)
        sizes = q.shape[1], kv_heads, q.shape[2], page_size(self._capacity)
        types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
        self._wait()
        if all(span.length == 1 for span in spans):
            self._single.plan(pages, indices, last, *sizes, **types)
            wrapper = self._single
        else:
            self._longer.plan(self._host(table.rows), pages, indices, last, *sizes, causal=True, **types)
            wrapper = self._longer
        self._mark()
        return wrapper

    def _host(self, values: list[int]) -> Tensor:
        """Where the planner reads; pinned, so that its copy to the device does not wait for what runs there."""
        return torch.tensor(values, dtype=torch.int32, pin_memory=self._device.type == "cuda")

    def _wait(self) -> None:
        """The planner writes into one pinned buffer: not before its last copy has left."""
        if self._copied is not None:
            self._copied.synchronize()

    def _mark(self) -> None:
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(self._device))


class Mixed:
    """One persistent kernel for prefills and decode rows. Its plan waits for the device."""

    def __init__(self, kv: KVSlots) -> None:
        self._device = kv.data.device
        self._capacity = kv.capacity
        self._attention = flashinfer.BatchAttention("NHD", str(self._device))

    def planned(self, spans: Sequence[Span], q: Tensor, kv_heads: int) -> Any:
        """The kernel, planned for a pass."""
        table = PageTable.of(spans, self._capacity)
        rows, pages, indices, ends = (
            on_device(values, self._device, torch.int32)
            for values in (table.rows, table.pages, table.indices, table.ends)
        )
        width = q.shape[2]
        self._attention.plan(
            rows, pages, indices, ends, q.shape[1], kv_heads, width, width, page_size(self._capacity),
            causal=True, q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip
        return self

    def run(self, q: Tensor, pages: tuple[Tensor, Tensor]) -> Tensor:
        """[L_Q, H, D] → the same, without the sums of weights."""
        out: Tensor = self._attention.run(q, pages)[0]
        return out


def packed_attention(layout: PackedLayout, kv: KVSlots) -> Attend:
    """A prefill wrapper with a causal mask aligned bottom right; for decode rows alone the decode wrapper."""
    return _attending(layout, kv.kept("flashinfer", Paged))


def packed_attention_mixed(layout: PackedLayout, kv: KVSlots) -> Attend:
    """BatchAttention."""
    return _attending(layout, kv.kept("flashinfer mixed", Mixed))


def _attending(layout: PackedLayout, planner: Paged | Mixed) -> Attend:
    wrapper: Any = None

    def attend(q: Tensor, k_slots: Tensor, v_slots: Tensor) -> Tensor:
        nonlocal wrapper
        if wrapper is None:
            if q.shape[2] not in WIDTHS:
                raise ConfigError(f"operator packed_attention: flashinfer takes heads of {WIDTHS}, not {q.shape[2]}")
            wrapper = planner.planned(layout.spans, q, k_slots.shape[2])
        out: Tensor = wrapper.run(q.contiguous(), (as_pages(k_slots), as_pages(v_slots)))
        return out

    return attend
