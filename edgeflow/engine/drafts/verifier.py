"""What happens behind the forward pass of sequences with drafts: sample, accept, move what is kept, draft anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.engine.drafts.accepting import Accepted, accept_chain, accept_tree
from edgeflow.engine.drafts.drafter import Drafter, ReadRows
from edgeflow.engine.outcomes import drafted_lines
from edgeflow.engine.sampling.sample import Earlier, SampledRows, SamplingKind, sample
from edgeflow.engine.slots import SlotState
from edgeflow.engine.verification import RanRows
from edgeflow.kernels.greedy import Greedy
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.scheduler.plan import DraftForm


class DraftVerifier:
    """Verifies the drafts of `drafter` over the slots of `kv`: a `Verifier` of the executor.

    greedy: the operator of each stage of a pass.
    """

    def __init__(self, drafter: Drafter, kv: KVSlots, state: SlotState, greedy: Mapping[str, Greedy]) -> None:
        self._drafter = drafter
        self._kv = kv
        self._state = state
        self._greedy = greedy

    @property
    def taps(self) -> tuple[int, ...]:
        return self._drafter.taps

    @property
    def store(self) -> KVSlots | None:
        return self._drafter.store

    def rows(self, form: DraftForm) -> int:
        """Rows of a verification in this form."""
        return self._drafter.rows(form)

    def settle(self, ran: RanRows, kind: SamplingKind, allowed: Tensor | None = None) -> Tensor | None:
        firsts = self._state.length.index_select(0, ran.slots) - ran.counts
        read = ReadRows(
            slots=ran.slots,
            firsts=firsts,
            counts=ran.counts,
            lengths=ran.lengths,
            features=ran.features,
            rope=ran.rope,
            form=ran.form,
            sampled=ran.logits is not None,
            on_host=ran.on_host,
        )
        if ran.logits is None:
            self._drafter.draft(read)
            return None
        if ran.verifies:
            read, rows, accepted = self._verify(ran, read, ran.logits, kind, allowed)
        else:
            rows, accepted = self._continue(ran, read, ran.logits, kind, allowed)
        settled, path = accepted.settled, accepted.path
        at = torch.arange(path.shape[1], device=path.device)
        sound = (rows.finite.view(path.shape) | (at >= settled[:, None])).all(1).long()
        found = self._drafter.draft(read)
        return drafted_lines(rows, sound, settled, found, self._standing(ran, firsts + read.counts, settled))

    def _continue(
        self, ran: RanRows, read: ReadRows, logits: Tensor, kind: SamplingKind, allowed: Tensor | None
    ) -> tuple[SampledRows, Accepted]:
        """The last row of each segment gives one token."""
        places = read.firsts + read.counts
        rows = self._sample(logits, ran, read.slots, places, kind, allowed)
        self._state.ids[read.slots, places] = rows.ids
        self._remember(kind, read.slots, rows.ids)
        ones = torch.ones_like(places)
        return rows, Accepted(ones, torch.zeros_like(ones)[:, None])

    def _verify(
        self, ran: RanRows, read: ReadRows, logits: Tensor, kind: SamplingKind, allowed: Tensor | None
    ) -> tuple[ReadRows, SampledRows, Accepted]:
        """Every row of each segment gives a token; those on the accepted path are settled, and its rows are kept."""
        state, slots, firsts = self._state, read.slots, read.firsts
        segments, length = len(slots), ran.lengths[0]
        at = torch.arange(length, device=slots.device)
        tree = ran.form is DraftForm.TREE
        trees = state.tree
        bits = trees.bits[slots, :length] if tree else (torch.ones_like(at) << (at + 1)) - 1
        depth = trees.depth[slots, :length] if tree else at.expand(segments, -1)
        parent = trees.parent[slots, :length] if tree else (at - 1).clamp(min=0).expand(segments, -1)
        tokens = state.ids[slots[:, None], firsts[:, None] + at]
        before = None
        if kind.penalised:
            ahead = ((bits.expand(segments, -1)[..., None] >> at) & 1 == 1) & (at > 0)
            before = Earlier(tokens.repeat_interleave(length, 0), ahead.flatten(0, 1))
        owners = slots.repeat_interleave(length)
        places = (firsts[:, None] + depth + 1).flatten()
        rows = self._sample(logits, ran, owners, places, kind, allowed, before)
        given, finite = rows.ids.view(segments, -1), rows.finite.view(segments, -1)
        masked = length if allowed is None else len(allowed)  # tokens behind the last mask would be unconstrained
        right = (given.gather(1, parent) == tokens) & finite.gather(1, parent)
        right = right & (at < ran.counts.clamp(max=masked)[:, None])
        width = min(self._drafter.width(ran.form), length)
        accepted = accept_tree(right, bits, depth, width) if tree else accept_chain(right)
        settled, path = accepted.settled, accepted.path
        if tree:
            self._kv.compact(slots, firsts[:, None] + path, firsts[:, None])
        index = (path + length * torch.arange(segments, device=slots.device)[:, None]).flatten()
        rows = rows.select(index)
        kept = torch.arange(path.shape[1], device=slots.device)
        state.ids[slots[:, None], firsts[:, None] + 1 + kept] = rows.ids.view(path.shape)
        state.length.index_copy_(0, slots, firsts + settled)
        self._remember(kind, slots.repeat_interleave(path.shape[1]), rows.ids, (kept < settled[:, None]).flatten())
        features = None if read.features is None else read.features.index_select(0, index)
        lengths = (path.shape[1],) * segments
        read = replace(read, counts=settled, lengths=lengths, features=features, rope=read.rope.index_select(1, index))
        return read, rows, accepted

    def _sample(
        self,
        logits: Tensor,
        ran: RanRows,
        slots: Tensor,
        places: Tensor,
        kind: SamplingKind,
        allowed: Tensor | None,
        before: Earlier | None = None,
    ) -> SampledRows:
        if allowed is not None:  # rows without a mask are not accepted: anything is permitted
            more = allowed.new_ones(max(len(logits) - len(allowed), 0), allowed.shape[1])
            allowed = torch.cat([allowed, more])[: len(logits)]
        folded = self._state.folded
        drawn = places if folded is None else places + folded[slots]
        greedy = self._greedy[ran.stage]
        return sample(logits, self._state.sampling, slots, drawn, kind, greedy, allowed, before)

    def _remember(self, kind: SamplingKind, slots: Tensor, ids: Tensor, settled: Tensor | None = None) -> None:
        if kind.penalised and self._state.sampling is not None:
            self._state.sampling.remember(slots, ids, settled)

    def _standing(self, ran: RanRows, newest: Tensor, settled: Tensor) -> Tensor:
        """The drafts of chains [S, K], for who needs them on the host; none of trees."""
        count = self._drafter.rows(ran.form) - 1 if ran.form is DraftForm.CHAIN else 0
        at = torch.arange(1, count + 1, device=settled.device)
        return self._state.ids[ran.slots[:, None], newest[:, None] + at]
