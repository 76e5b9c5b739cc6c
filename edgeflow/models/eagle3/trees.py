"""Grows trees of drafts with an EAGLE-3 head, as the original implementation does.

The head's vocabulary gives the `width` best first tokens. Each later forward runs the `width` best candidates of the
one before as rows, and every row has `width` candidates. The best of all candidates become the rows of a verification.
A candidate's score is the sum of the log probabilities along its path, so no candidate has a better one than its
parent. Where scores are equal the earlier candidate wins, and a parent is earlier than its children.

Everything is a device tensor whose size follows from the arguments, so that a graph can hold a whole tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import TREE_ROWS, Visibility
from edgeflow.models.eagle3.head import Eagle3Head


@dataclass(frozen=True, slots=True)
class TreeSizes:
    """The sizes of a tree.

    ValueError for sizes below the least ones, for more rows than candidates or than bits can name, and where a row may
    have more places of ancestors to choose from than bits.
    """

    rows: int = 60
    """The rows of its verification, the newest token (root) included."""
    depth: int = 7
    """Forwards after the first one."""
    width: int = 10
    """Rows of a forward, and candidates of a row; 1 gives a chain."""

    def __post_init__(self) -> None:
        for name, least in (("rows", 2), ("depth", 0), ("width", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} of a tree must be an integer, at least {least}, got {value!r}")
        if self.rows > TREE_ROWS:
            raise ValueError(f"rows of a tree must be at most {TREE_ROWS}, got {self.rows}")
        if (self.depth - 1) * self.width > TREE_ROWS:
            raise ValueError(
                f"(depth - 1) * width of a tree must be at most {TREE_ROWS}, got {self.depth - 1} * {self.width}"
            )
        if self.rows - 1 > self.candidates:
            raise ValueError(
                f"depth {self.depth} and width {self.width} give {self.candidates} candidates, but rows {self.rows} "
                f"need {self.rows - 1}"
            )

    @property
    def candidates(self) -> int:
        """The number of tokens that are scored for a tree."""
        return self.width + self.depth * self.width**2

    @property
    def places(self) -> int:
        """The number of places after the sequence of a draft slot that are written while a tree grows."""
        return self.depth * self.width


@dataclass(frozen=True, slots=True)
class DraftedTrees:
    """The drafts of S trees, in the order of a verification's rows after its root."""

    tokens: Tensor
    """[S, rows - 1]: int64, of the base's vocabulary."""
    parents: Tensor
    """[S, rows - 1]: int64, the row of the verification that each one follows, 0 for the root; a parent comes before
    its children.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beam:
    """The candidates that the next forward runs, [S, width] each."""

    candidate: Tensor
    """Their places among all candidates."""
    tokens: Tensor
    scores: Tensor
    bits: Tensor
    """The places of their ancestors after the sequence, as in `Visibility`."""
    feature: Tensor
    """[S, width, E]: the feature of the row that each follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TreePlaces:
    """The places where trees grow; fields as the arguments of `grow`."""

    slots: Tensor
    ends: Tensor
    rope: Tensor
    width: int
    reach: int
    """A bound on all places."""
    whole: PackedLayout
    spans: tuple[Span, ...] | None
    """The ends of sequences on the host."""

    def layout(self, step: int, bits: Tensor) -> PackedLayout:
        """The rows of a forward. bits [S, width]: of their ancestors."""
        count, width = len(self.slots), self.width
        device = self.slots.device
        place = self.ends[:, None] + torch.arange(step * width, (step + 1) * width, device=device)
        position = place.flatten()
        spans = self.spans and tuple(Span(each.slot, each.start + step * width, width) for each in self.spans)
        return PackedLayout(
            lengths=(width,) * count,
            reach=self.reach if spans is None else max(span.start + width for span in spans),
            row_slot=self.slots.repeat_interleave(width, output_size=count * width),
            row_position=position,
            rope_position=(self.rope[:, :, None] + step).expand(-1, -1, width).flatten(1),
            sampled_rows=torch.arange(count * width, device=device),
            samples=(width,) * count,
            places=spans,
            visibility=None if width == 1 else self._visibility(position, bits),  # a chain is causal
        ).sharing(self.whole, "trees")

    def _visibility(self, position: Tensor, bits: Tensor) -> Visibility:
        """Every row sees the sequence, its ancestors and itself."""
        first = self.ends.repeat_interleave(self.width, output_size=len(position))
        ranges = torch.stack([torch.zeros_like(first), first, position, position + 1], 1)
        return Visibility(ranges.view(-1, 2, 2), bits.flatten(), first)


def grow(
    head: Eagle3Head,
    kv: KVSlots,
    *,
    slots: Tensor,
    ends: Tensor,
    rope: Tensor,
    hidden: Tensor,
    sizes: TreeSizes,
    reach: int = 0,
    whole: PackedLayout,
    on_host: bool,
) -> DraftedTrees:
    """Grow a tree after each of S sequences of draft slots.

    slots [S], ends [S]: int64, the slots and how many places of each the sequence has; `sizes.places` places after
    them are written. rope [C, S]: int64, the RoPE position of the place at `ends`. hidden [S, E]: what the head
    returned for the last row of each sequence. reach: a bound on `ends`, 0 for the capacity of the slots. whole: the
    layout of the pass, which keeps what forwards share. on_host: the host may read slots and ends, as attention on a
    CPU needs; otherwise nothing is read there. ValueError for a width
    beyond the head's vocabulary, and on the host for a tree beyond the capacity of the slots.
    """
    width = sizes.width
    if width > head.config.draft_vocabulary:
        raise ValueError(f"width {width} of a tree is more than the head's vocabulary {head.config.draft_vocabulary}")
    spans = _spans(slots, ends, sizes, kv) if on_host else None
    furthest = min(reach + sizes.places, kv.capacity) if reach else kv.capacity
    places = _TreePlaces(slots=slots, ends=ends, rope=rope, width=width, reach=furthest, whole=whole, spans=spans)
    scores, tokens = _best(head, hidden, width)
    beam = _Beam(
        candidate=torch.arange(width, device=slots.device).expand_as(tokens),
        tokens=tokens,
        scores=scores,
        bits=torch.zeros_like(tokens),
        feature=hidden[:, None].expand(-1, width, -1),
    )
    all_scores, all_tokens, all_parents = [scores], [tokens], [torch.full_like(tokens, -1)]
    for step in range(sizes.depth):
        layout = places.layout(step, beam.bits)
        out = head.forward(beam.feature.flatten(0, 1), head.embed(beam.tokens.flatten()), layout, kv)
        scores, tokens = (each.view(len(slots), width * width) for each in _best(head, out, width))
        scores = scores + beam.scores.repeat_interleave(width, 1, output_size=width * width)
        all_scores.append(scores)
        all_tokens.append(tokens)
        all_parents.append(beam.candidate.repeat_interleave(width, 1, output_size=width * width))
        if step + 1 < sizes.depth:
            beam = _next_beam(beam, step, scores, tokens, out)
    return _chosen(torch.cat(all_scores, 1), torch.cat(all_tokens, 1), torch.cat(all_parents, 1), sizes.rows - 1)


def _spans(slots: Tensor, ends: Tensor, sizes: TreeSizes, kv: KVSlots) -> tuple[Span, ...]:
    """The end of each sequence, on the host."""
    spans = tuple(Span(slot, end, 0) for slot, end in zip(slots.tolist(), ends.tolist(), strict=True))
    longest = max((span.start for span in spans), default=0)
    if longest + sizes.places > kv.capacity:
        raise ValueError(f"a tree of {sizes.places} places after {longest} is beyond slots of {kv.capacity} positions")
    return spans


def _best(head: Eagle3Head, hidden: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best tokens that follow each row: log probabilities and tokens of the base, [n, width] each.

    A number that is not a log probability counts as the worst one.
    """
    found = head.log_probabilities(hidden)
    values, ids = torch.where(found <= 0, found, -torch.inf).topk(width, -1)
    return values, head.targets[ids]


def _next_beam(beam: _Beam, step: int, scores: Tensor, tokens: Tensor, out: Tensor) -> _Beam:
    """The best candidates of a forward. scores, tokens [S, width²]: its candidates; out [S * width, E]: its rows."""
    count, width = beam.tokens.shape
    best = _best_first(scores, width)
    row = best // width
    own = torch.bitwise_left_shift(torch.ones_like(row), step * width + row)
    features = out.view(count, width, -1)
    return _Beam(
        candidate=width + step * width**2 + best,
        tokens=tokens.gather(1, best),
        scores=scores.gather(1, best),
        bits=beam.bits.gather(1, row) | own,
        feature=features.gather(1, row[..., None].expand(-1, -1, features.shape[-1])),
    )


def _best_first(scores: Tensor, count: int) -> Tensor:
    """The best of each row, best first, the earlier one of equals first: [S, n] → [S, count]"""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]


def _chosen(scores: Tensor, tokens: Tensor, parents: Tensor, count: int) -> DraftedTrees:
    """The best candidates in their own order. parents: each one's parent among the candidates, -1 for the root."""
    chosen = _best_first(scores, count).sort(1).values
    rows = torch.arange(1, count + 1, device=chosen.device).expand_as(chosen)
    row_of = torch.zeros_like(scores[:, :1], dtype=torch.long).repeat(1, scores.shape[1] + 1)  # the root's is 0
    row_of.scatter_(1, chosen + 1, rows)
    return DraftedTrees(tokens.gather(1, chosen), row_of.gather(1, parents.gather(1, chosen) + 1))
