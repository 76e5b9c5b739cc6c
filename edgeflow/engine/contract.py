"""The interface between an executor and what it serves: how prompts become rows of a pass."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from edgeflow.engine.policy import Decoder


@dataclass(frozen=True, slots=True, eq=False)
class Drafting:
    """Drafts of an answer of K tokens. Both int64, on the device.

    first [K-1]: the guess of a sequence that has none before it. near [K]: 1 where a token may settle within a
    tolerance, 0 where it settles exactly.
    """

    first: Tensor
    near: Tensor


class Contract(Hashable, Protocol):
    """How the prompts of one model's sequences enter its passes.

    A prompt's segment brings whole numbers and a payload; both lie in the buffer that a pass reads. Segments may be
    padded: rows behind the last one are written behind it in the slot, where the sequence's next row replaces them.
    """

    @property
    def decoder(self) -> Decoder: ...

    @property
    def drafting(self) -> Drafting | None:
        """How drafts behind a prompt begin and settle; None where prompts have none."""
        ...

    @property
    def components(self) -> int:
        """Numbers per RoPE position: 1, or 3 for M-RoPE."""
        ...

    @property
    def keeps_ids(self) -> bool:
        """True where numbers hold the tokens of prompts, as folds and drafts need them (`ids`)."""
        ...

    def count(self, rows: int) -> int:
        """Whole numbers that a segment of so many rows brings."""
        ...

    def payload_bytes(self, rows: int) -> int:
        """Size of its payload."""
        ...

    def numbers(self, prompt: Any, rows: int) -> Sequence[int]:
        """The whole numbers of a prompt in a segment of `rows`, at most `count(rows)`; zeros follow."""
        ...

    def payload(self, prompt: Any) -> Tensor:
        """The payload, on the host or on the device, at most `payload_bytes(rows)` long."""
        ...

    def embed(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:
        """Segments as rows [n, E], without reading anything on the host. payload: those of all segments, as bytes."""
        ...

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:
        """The token of each row of each segment, and the one behind the last; where `keeps_ids`."""
        ...

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        """RoPE positions of all segments [C, rows], and the shift of each behind its prompt; None where C is 1."""
        ...
