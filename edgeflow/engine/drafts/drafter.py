"""The interface between a verification and those who guess the tokens of the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.scheduler.plan import DraftForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of S slots that have become part of their sequences, one segment after the other.

    slots [S]; firsts [S]: the place of the first row; counts [S]: rows of each, without padding. lengths: with padding,
    on the host. features [sum of lengths, taps * E]: of each row, as the base's decoder gives them (models.llama.Taps);
    None without taps. rope [C, sum of lengths]: RoPE positions. form: of the drafts to make. reach: a bound on where
    rows end, on the host. sampled: whether the newest token is known, so that there is something to draft behind.
    on_host: the host may read.
    """

    slots: Tensor
    firsts: Tensor
    counts: Tensor
    lengths: tuple[int, ...]
    features: Tensor | None
    rope: Tensor
    form: DraftForm
    reach: int
    sampled: bool
    on_host: bool


class Drafter(Protocol):
    """Makes drafts, on the device: nothing waits for the host, and sizes depend on shapes alone.

    taps: layers of the base whose input it reads. store: its own keys and values, a place for each of the base's; None
    where it has none. width: the most rows on a path, the newest token included, in this form.
    """

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def store(self) -> KVSlots | None: ...

    def width(self, form: DraftForm) -> int: ...

    def rows(self, form: DraftForm) -> int:
        """Rows of a verification, the newest token included."""
        ...

    def draft(self, read: ReadRows) -> Tensor:
        """Take rows into account; where `read.sampled`, write drafts behind the newest token of each slot.

        They go to the tokens of the slot (`SlotState.ids`), and the shape of a tree to its trees. Returns how many
        there are: [S].
        """
        ...
