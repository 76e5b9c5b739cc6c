"""The verification of drafts after the forward pass: sample, accept, move the accepted rows, draft anew.

A draft is compared with a token that was drawn without knowledge of it, greedily or with the share of its place. So the
tokens of an answer, and their distribution, are those of decoding one by one (Leviathan et al. 2022, with a proposal
that is certain of each draft).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.program import ReadRows
from edgeflow.engine.sampling.sample import Earlier, SampledRows, SamplingKind, drafted_lines, sample
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.row_operators import Greedy
from edgeflow.scheduler.plan import DraftForm


def accepted_of_chain(right: Tensor) -> Tensor:
    """How many tokens of each chain are verified [S].

    right [S, R - 1] bool: whether each draft is the token that the row before it gives.
    """
    return 1 + right.long().cumprod(1).sum(1)


def accepted_of_tree(right: Tensor, bits: Tensor, depth: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """How many tokens of each tree are verified [S], and the rows that give them [S, width], the last one repeated.

    right [S, R] bool: as in a chain, where the row before is the parent; that of the root is not read. bits, depth
    [S, R]: as in `DraftTrees`.
    """
    at = torch.arange(right.shape[1], device=right.device)
    of_row = torch.ones_like(bits) << at
    confirmed = torch.cat([of_row[:, :1], of_row[:, 1:] * right[:, 1:]], dim=1).sum(1, keepdim=True)
    # A row is reached when every row on its path, itself included, was confirmed by its parent.
    alive = (bits & ~confirmed) == 0
    last = torch.where(alive, depth, -1).argmax(1, keepdim=True)  # siblings are different tokens: one path at most
    on_path = (bits.gather(1, last) >> at) & 1 == 1
    rows = torch.where(on_path, at, right.shape[1]).sort(1).values[:, :width]
    return depth.gather(1, last)[:, 0] + 1, torch.minimum(rows, last)


class DraftVerifier:
    """Verifies the drafts of `drafter` over the slots of `kv`: a `Verifier` of the executor.

    greedy: the operator of each stage of a pass. rows, width: of a verification in a form, as the drafter says.
    """

    def __init__(self, drafter: Drafter, kv: KVSlots, state: SlotState, greedy: Mapping[str, Greedy]) -> None:
        self.taps, self.store = drafter.taps, drafter.store
        self.rows, self.width = drafter.rows, drafter.width
        self._drafter = drafter
        self._kv = kv
        self._state = state
        self._greedy = greedy

    def verify(
        self, read: ReadRows, logits: Tensor | None, stage: str, kind: SamplingKind, allowed: Tensor | None = None
    ) -> Tensor | None:
        if logits is None:
            self._drafter.draft(read)
            return None
        choose = _Choose(self._state, self._greedy[stage], logits, kind, allowed)
        is_verification = len(logits) > len(read.slots)
        if is_verification:
            if allowed is not None and len(read.slots) > 1:
                raise ValueError("drafts under a grammar are verified one sequence at a time")
            verify = self._verify_tree if read.form is DraftForm.TREE else self._verify_chain
            read, rows = verify(read, choose)
        else:
            places = read.firsts + read.counts
            rows = choose(read.slots, places, None)  # a token from the last row of each segment
            self._state.ids[read.slots, places] = rows.ids
        verified = read.counts if is_verification else torch.ones_like(read.counts)
        finite = rows.finite.view(len(verified), -1)
        at = torch.arange(finite.shape[1], device=finite.device)
        unverified = at >= verified[:, None]
        if kind.penalised and self._state.sampling is not None:
            slots = read.slots.repeat_interleave(len(at), output_size=unverified.numel())
            self._state.sampling.remember(slots, rows.ids, ~unverified.flatten())
        sound = (finite | unverified).all(1).long()
        found = self._drafter.draft(read)
        standing = read.slots.new_empty(len(verified), 0) if allowed is None else self._standing(read)
        return drafted_lines(rows, sound, verified, found, standing)

    def _verify_chain(self, read: ReadRows, choose: _Choose) -> tuple[ReadRows, SampledRows]:
        """Sample a token from every row; those up to the first that replaces its draft are verified."""
        state, slots, firsts = self._state, read.slots, read.firsts
        at = torch.arange(read.lengths[0], device=slots.device)
        places = firsts[:, None] + at
        tokens = state.ids[slots[:, None], places]
        before = Earlier(tokens, (at > 0) & (at <= at[:, None])) if choose.kind.penalised else None
        rows = choose(slots, places + 1, before)
        given, finite = rows.ids.view(places.shape), rows.finite.view(places.shape)
        right = (given[:, :-1] == tokens[:, 1:]) & finite[:, :-1] & (at[1:] < choose.most(read.counts)[:, None])
        verified = accepted_of_chain(right)
        state.ids[slots[:, None], places + 1] = given
        state.length.index_copy_(0, slots, firsts + verified)
        return replace(read, counts=verified), rows

    def _verify_tree(self, read: ReadRows, choose: _Choose) -> tuple[ReadRows, SampledRows]:
        """Sample a token from every row; those on the accepted path are verified, and the rows of the path are kept."""
        state, slots, firsts, length = self._state, read.slots, read.firsts, read.lengths[0]
        bits, depth, parent = (each[slots, :length] for each in (state.tree.bits, state.tree.depth, state.tree.parent))
        at = torch.arange(length, device=slots.device)
        tokens = state.ids[slots[:, None], firsts[:, None] + at]
        before = Earlier(tokens, (bits[..., None] >> at & 1 == 1) & (at > 0)) if choose.kind.penalised else None
        rows = choose(slots, firsts[:, None] + depth + 1, before)
        given, finite = rows.ids.view(tokens.shape), rows.finite.view(tokens.shape)
        right = (given.gather(1, parent) == tokens) & finite.gather(1, parent)
        right = right & (at < choose.most(read.counts)[:, None])
        verified, path = accepted_of_tree(right, bits, depth, min(self._drafter.width(read.form), length))
        self._kv.compact(slots, firsts[:, None] + path, firsts[:, None])
        index = (path + length * torch.arange(len(slots), device=slots.device)[:, None]).flatten()
        rows, kept = rows.select(index), torch.arange(1, path.shape[1] + 1, device=slots.device)
        state.ids[slots[:, None], firsts[:, None] + kept] = rows.ids.view(path.shape)
        state.length.index_copy_(0, slots, firsts + verified)
        features = None if read.features is None else read.features.index_select(0, index)
        lengths = (path.shape[1],) * len(slots)
        rope = read.rope.index_select(1, index)
        return replace(read, counts=verified, lengths=lengths, features=features, rope=rope), rows

    def _standing(self, read: ReadRows) -> Tensor:
        """The drafts after the newest tokens [S, K], for a grammar on the host."""
        newest = read.firsts + read.counts
        at = torch.arange(1, self._drafter.rows(read.form), device=newest.device)
        return self._state.ids[read.slots[:, None], newest[:, None] + at]


@dataclass(frozen=True, slots=True)
class _Choose:
    """Chooses a token for each sampled row of a pass. logits [n, V]."""

    state: SlotState
    greedy: Greedy
    logits: Tensor
    kind: SamplingKind
    allowed: Tensor | None
    """The tokens that a grammar permits, as in `Verifier.verify`."""

    def most(self, counts: Tensor) -> Tensor:
        """How many of so many tokens may be verified [S]: after its last mask a grammar says nothing."""
        return counts if self.allowed is None else counts.clamp(max=len(self.allowed))

    def __call__(self, slots: Tensor, places: Tensor, before: Earlier | None) -> SampledRows:
        """slots [S]; places [S] or [S, R]: where the tokens of the rows enter. before: drafts ahead of each, R of S."""
        count = len(self.logits)
        owners = slots.repeat_interleave(count // len(slots), output_size=count) if count > len(slots) else slots
        allowed = self.allowed
        if allowed is not None:  # rows after a draft that the grammar forbids are not accepted: anything is permitted
            more = allowed.new_ones(max(count - len(allowed), 0), allowed.shape[1])
            allowed = torch.cat([allowed, more])[:count]
        earlier = None
        if before is not None:
            tokens = before.tokens.repeat_interleave(count // len(slots), 0, output_size=count)
            earlier = Earlier(tokens, before.counted.expand(len(slots), -1, -1).flatten(0, 1))
        return sample(
            self.logits,
            self.state.sampling,
            owners,
            self.state.drawn(owners, places.flatten()),
            kind=self.kind,
            greedy=self.greedy,
            allowed=allowed,
            earlier=earlier,
        )
