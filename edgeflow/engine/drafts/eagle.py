"""EAGLE-3: drafts by a head of one layer, which reads what the base computes in three of its layers.

The head has a separate KV store with the same slots: the row at place p is made of the base's features at p and the
token at p + 1. So each pass extends it by the rows that are settled, and then grows a tree or a chain behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from edgeflow.engine.drafts.drafter import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.eagle3.growing import TreeSizes, grow
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.scheduler.plan import DraftForm


class EagleDrafter:
    """sizes: of what is grown in each form. store: of the head."""

    def __init__(
        self, head: Eagle3Head, store: KVSlots, state: SlotState, sizes: Mapping[DraftForm, TreeSizes]
    ) -> None:
        self.store = store
        self._head = head
        self._state = state
        self._sizes = sizes

    @property
    def taps(self) -> tuple[int, ...]:
        return self._head.config.taps

    def width(self, form: DraftForm) -> int:
        return self._sizes[form].depth + 2

    def rows(self, form: DraftForm) -> int:
        return self._sizes[form].rows

    def draft(self, read: ReadRows) -> Tensor:
        hidden, last = self._extend(read)
        slots, sizes = read.slots, self._sizes[read.form]
        if not read.sampled:
            return torch.zeros_like(slots)
        newest = read.firsts + read.counts
        grown = grow(
            self._head,
            self.store,
            slots=slots,
            ends=newest,
            rope=read.rope.index_select(1, last) + 1,
            hidden=hidden.index_select(0, last),
            sizes=sizes,
            reach=read.reach,
            on_host=read.on_host,
        )
        at = torch.arange(sizes.rows - 1, device=slots.device)
        self._state.ids[slots[:, None], newest[:, None] + 1 + at] = grown.tokens
        if read.form is DraftForm.TREE:
            self._state.tree.plant(slots, grown.parents, sizes.depth + 1)
        return torch.full_like(slots, sizes.rows - 1)

    def _extend(self, read: ReadRows) -> tuple[Tensor, Tensor]:
        """The head's hidden states of all rows, and the index of the last row of each segment."""
        if read.features is None:
            raise ValueError("the head of EAGLE-3 needs the features of its base")
        device, lengths = read.slots.device, read.lengths
        offset = torch.cat([torch.arange(length, device=device) for length in lengths])
        slots, firsts = (_per_row(each, lengths) for each in (read.slots, read.firsts))
        places = firsts + offset
        layout = PackedLayout(
            lengths=lengths,
            reach=min(read.reach, self.store.capacity),
            row_slot=slots,
            row_position=places,
            rope_position=read.rope,
            sampled_rows=torch.arange(len(offset), device=device),
            samples=lengths,
            places=_spans(read) if read.on_host else None,
        )
        tokens = self._state.ids[slots, places + 1]
        feature = self._head.project(read.features)
        hidden = self._head.forward(feature, self._head.embed(tokens), layout, self.store)
        starts = [torch.full_like(read.counts[:1], start) for start in accumulate(lengths[:-1], initial=0)]
        return hidden, torch.cat(starts) + read.counts - 1


def _per_row(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Values of segments [S], repeated for each of their rows."""
    return torch.cat([value.expand(length) for value, length in zip(values.unbind(), lengths, strict=True)])


def _spans(read: ReadRows) -> tuple[Span, ...]:
    starts = zip(read.slots.tolist(), read.firsts.tolist(), read.lengths, strict=True)
    return tuple(Span(*each) for each in starts)
