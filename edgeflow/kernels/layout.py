"""How the rows of a pass lie over KV slots: the one description that models and kernels share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """One segment of a pass, host integers: its rows enter `slot` at positions start .. start+length."""

    slot: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Rows of a pass, in the order of the spans.

    row_slot [L_Q], row_position [L_Q]: int64, where each row's KV goes.
    rope_position [C, L_Q]: int64, what RoPE turns each row by: C = 1, or 3 (time, height, width) for M-RoPE.
    last_rows [N]: int64, index of the last row of each span.
    """

    spans: tuple[Span, ...]
    row_slot: Tensor
    row_position: Tensor
    rope_position: Tensor
    last_rows: Tensor

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device, rope_position: Tensor | None = None) -> PackedLayout:
        """The layout of spans, its index tensors on `device`; rows turn by their place in the slot unless told."""
        slots: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for span in spans:
            slots += [span.slot] * span.length
            positions += range(span.start, span.start + span.length)
            last.append(len(slots) - 1)
        index = on_device([slots, positions], device)
        turn = index[1:] if rope_position is None else rope_position.to(device, non_blocking=True)
        return cls(tuple(spans), index[0], index[1], turn, on_device(last, device))


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Whole numbers of the host as a tensor. On CUDA by way of pinned memory: the host does not wait for the device."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
