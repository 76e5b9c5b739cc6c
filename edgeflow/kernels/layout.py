"""How the rows of a pass lie over KV slots: the one description that models and kernels share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.errors import ConfigError

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Span:
    """One segment of a pass, host integers: its rows enter `slot` at positions start .. start+length."""

    slot: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Rows of a pass, in the order of its spans.

    lengths: rows of each span. reach: a bound on where spans end. Both are host integers: the shape of the pass.
    row_slot [L_Q], row_position [L_Q]: int64, where each row's KV goes.
    rope_position [C, L_Q]: int64, what RoPE turns each row by: C = 1, or 3 (time, height, width) for M-RoPE.
    last_rows [N]: int64, index of the last row of each span.
    places: the spans themselves, None where only the device knows: passes of one shape that replay one graph.
    """

    lengths: tuple[int, ...]
    reach: int
    row_slot: Tensor
    row_position: Tensor
    rope_position: Tensor
    last_rows: Tensor
    places: tuple[Span, ...] | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

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
        lengths = tuple(span.length for span in spans)
        reach = max((span.start + span.length for span in spans), default=0)
        return cls(lengths, reach, index[0], index[1], turn, on_device(last, device), tuple(spans))

    @property
    def spans(self) -> tuple[Span, ...]:
        """Slots and positions on the host; ConfigError where a graph is made, which other ones replay."""
        if self.places is None:
            raise ConfigError("packed_attention: what serves it reads slots on the host, a graph cannot hold it")
        return self.places

    def kept(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """What an operator makes once of `lengths` and `reach`, such as a list of tiles; it lives with the layout."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Made = self._kept[name]
        return kept


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Whole numbers of the host as a tensor. On CUDA by way of pinned memory: the host does not wait for the device."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
