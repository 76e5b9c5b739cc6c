"""Prompt look-up: drafts are what followed the newest tokens where they stood before, in the prompt or in the answer.

It needs no weights (prompt lookup decoding, A. Saxena 2023). The longest run of equal tokens counts, of several the
latest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.engine.drafts.drafter import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.scheduler.plan import DraftForm


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
        newest = (read.firsts + read.counts)[:, None]
        ids = self._state.ids.index_select(0, slots)
        run = self._runs(ids, newest)
        place = torch.arange(ids.shape[1], device=ids.device)
        rank = torch.where((place < newest) & (run >= self._shortest), run * ids.shape[1] + place, -1)
        best, source = rank.max(1, keepdim=True)
        at = torch.arange(self._drafts, device=ids.device)
        known = newest - source  # tokens behind the run; drafts go round where these are fewer
        self._state.ids[slots[:, None], newest + 1 + at] = ids.gather(1, source + 1 + at % known.clamp(min=1))
        return torch.where(best[:, 0] >= 0, known[:, 0].clamp(max=self._drafts), 0)

    def _runs(self, ids: Tensor, newest: Tensor) -> Tensor:
        """[S, P]: how many tokens up to each place equal those up to the newest, at most `longest`."""
        place, equal = torch.arange(ids.shape[1], device=ids.device), []
        for back in range(self._longest):
            token = ids.gather(1, (newest - back).clamp(min=0))
            equal.append((ids == token).roll(back, 1) & (place >= back) & (newest >= back))
        return torch.stack(equal).long().cumprod(0).sum(0)
