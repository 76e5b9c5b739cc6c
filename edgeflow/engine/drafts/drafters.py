"""The drafters, which guess the tokens that the next pass verifies: prompt look-up, and an EAGLE-3 head.

Prompt look-up: drafts are what followed the newest tokens where they stood before, in the prompt or in the answer. It
needs no weights (prompt lookup decoding, A. Saxena 2023). The longest run of equal tokens counts, the latest of
several.

EAGLE-3: drafts by a head of one layer, which reads what the base computes in three of its layers. The head has a
separate KV store with the same slots: the row at place p is made of the base's features at p and the token at p + 1. So
each pass extends it by the rows that are verified, and then grows a tree or a chain after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.program import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes, grow
from edgeflow.scheduler.plan import DraftForm


class Drafter(Protocol):
    """Makes drafts, on the device: nothing waits for the host, and sizes depend only on shapes.

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
        """Take rows into account; where `read.sampled`, write drafts after the newest token of each slot.

        Drafts enter the tokens of the slot (`SlotState.ids`), and the shape of a tree its `SlotState.tree`. Returns the
        number of drafts [S].
        """
        ...


BEFORE, NEVER = -1, -2
"""The ids before the first token of a slot, and one that equals no token."""


class LookupDrafter:
    """Prompt look-up. drafts: the most that are made. shortest, longest: tokens of a run that must be equal, and that
    are compared.
    """

    taps = ()
    store = None

    def __init__(self, state: SlotState, *, drafts: int, shortest: int, longest: int) -> None:
        self._state = state
        self._drafts = drafts
        self._shortest = shortest
        self._longest = longest

    def width(self, form: DraftForm) -> int:  # noqa: ARG002 - there are only chains
        return 1 + self._drafts

    rows = width

    def draft(self, read: ReadRows) -> Tensor:
        slots = read.slots
        if not read.sampled:
            return torch.zeros_like(slots)
        if read.on_host:
            return self._draft_on_host(read)
        newest = (read.firsts + read.counts)[:, None]
        ids = self._state.ids[:, : read.reach + 1].index_select(0, slots)
        run = self._runs(ids, newest)
        place = torch.arange(ids.shape[1], device=ids.device)
        # The longest run wins, and of equally long ones the latest: one maximum over (run, place) without a loop.
        rank = torch.where((place < newest) & (run >= self._shortest), run * ids.shape[1] + place, -1)
        best, source = rank.max(1, keepdim=True)
        at = torch.arange(self._drafts, device=ids.device)
        known = newest - source  # tokens after the run: a shorter period is repeated
        self._state.ids[slots[:, None], newest + 1 + at] = ids.gather(1, source + 1 + at % known.clamp(min=1))
        return torch.where(best[:, 0] >= 0, known[:, 0].clamp(max=self._drafts), 0)

    def _draft_on_host(self, read: ReadRows) -> Tensor:
        """As on a device: a few look-ups in memory of the host take less than as many launches."""
        found = []
        for slot, newest in zip(read.slots.tolist(), (read.firsts + read.counts).tolist(), strict=True):
            ids = self._state.ids[slot].numpy()
            source = self._latest(ids, newest)
            count = 0 if source is None else min(newest - source, self._drafts)
            if source is not None:
                ids[newest + 1 : newest + 1 + count] = ids[source + 1 : source + 1 + count]
            found.append(count)
        return torch.tensor(found)

    def _latest(self, ids: NDArray[np.int64], newest: int) -> int | None:
        """The latest place at which the longest run ends; None without one."""
        ends = np.flatnonzero(ids[:newest] == ids[newest])
        run = 1
        while len(ends) and run < self._longest:
            longer = ends[ends >= run]
            longer = longer[ids[longer - run] == ids[newest - run]]
            if not len(longer):
                break
            ends, run = longer, run + 1
        return int(ends[-1]) if len(ends) and run >= self._shortest else None

    def _runs(self, ids: Tensor, newest: Tensor) -> Tensor:
        """[S, P]: how many tokens up to each place equal those up to the newest, at most `longest`."""
        longest = self._longest
        padded = F.pad(ids, (longest - 1, 0), value=BEFORE)
        tail = padded.gather(1, newest + torch.arange(longest, device=ids.device))
        equal = padded.unfold(1, longest, 1) == torch.where(tail == BEFORE, NEVER, tail)[:, None]
        return equal.flip(-1).long().cumprod(-1).sum(-1)


class EagleDrafter:
    """Drafts by an EAGLE-3 head. sizes: of the trees in each form. store: the keys and values of the head."""

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
            whole=read.layout,
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
            places=tuple(map(Span, read.slots.tolist(), read.firsts.tolist(), lengths)) if read.on_host else None,
        ).sharing(read.layout, "verified rows")
        tokens = self._state.ids[slots, places + 1]
        feature = self._head.project(read.features)
        hidden = self._head.forward(feature, self._head.embed(tokens), layout, self.store)
        starts = [torch.full_like(read.counts[:1], start) for start in accumulate(lengths[:-1], initial=0)]
        return hidden, torch.cat(starts) + read.counts - 1


def _per_row(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Values of segments [S], repeated for each of their rows."""
    return torch.cat([value.expand(length) for value, length in zip(values.unbind(), lengths, strict=True)])
