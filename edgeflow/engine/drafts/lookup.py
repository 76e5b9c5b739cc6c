"""Prompt look-up: drafts are what followed the newest tokens where they stood before, in the prompt or in the answer.

It needs no weights (prompt lookup decoding, A. Saxena 2023). The longest run of equal tokens counts, of several the
latest.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.drafts.drafter import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.scheduler.plan import DraftForm

BEFORE, NEVER = -1, -2
"""What stands before the first token of a slot, and what equals nothing."""


class LookupDrafter:
    """drafts: the most that are made. shortest, longest: tokens of a run that must be equal, and that are compared."""

    taps = ()
    store = None

    def __init__(self, state: SlotState, *, drafts: int, shortest: int, longest: int) -> None:
        self._state = state
        self._drafts = drafts
        self._shortest = shortest
        self._longest = longest

    def width(self, form: DraftForm) -> int:  # noqa: ARG002 - chains alone
        return 1 + self._drafts

    def rows(self, form: DraftForm) -> int:  # noqa: ARG002
        return 1 + self._drafts

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
        rank = torch.where((place < newest) & (run >= self._shortest), run * ids.shape[1] + place, -1)
        best, source = rank.max(1, keepdim=True)
        at = torch.arange(self._drafts, device=ids.device)
        known = newest - source  # tokens behind the run; drafts go round where these are fewer
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
