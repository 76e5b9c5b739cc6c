"""A naive twin of `kernels/kv/visibility.py`: the places that rows see as sets; and random passes of any kind."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from edgeflow.kernels.kv import visibility as visibility
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.lab.trials import visibility as trials

Places = list[set[int]]
"""Of each row of a span."""


def causal(span: Span) -> Places:
    return [set(range(place + 1)) for place in places(span)]


def before(span: Span, stop: int) -> Places:
    return [set(range(stop)) for _ in places(span)]


def bidirectional_prefix(span: Span, prefix: int) -> Places:
    return [set(range(prefix)) if place < prefix else set(range(place + 1)) for place in places(span)]


def window(span: Span, width: int, sinks: int) -> Places:
    return [{seen for seen in range(place + 1) if seen < sinks or seen > place - width} for place in places(span)]


def bidirectional_suffix(span: Span, prefix: int) -> Places:
    return [set(range(prefix)) | set(places(span)) for _ in places(span)]


def tree_of_drafts(span: Span, parents: list[int]) -> Places:
    found: Places = []
    for row, parent in enumerate(parents):
        ancestors = set(range(span.start)) if parent < 0 else found[parent]
        found.append(ancestors | {span.start + row})
    return found


def written_out(ranges: list[tuple[int, int]], bits: int, first: int) -> set[int]:
    """What one row sees, from its ranges and bits."""
    own = {first + bit for bit in range(visibility.TREE_ROWS) if bits >> bit & 1}
    return {place for start, stop in ranges for place in range(start, stop)} | own


def places(span: Span) -> range:
    return range(span.start, span.start + span.length)


@st.composite
def seen_spans(draw, slots: int, capacity: int) -> tuple[list[Span], list[Visibility], Places]:
    """Spans of distinct slots, what their rows see, and the same as sets."""
    spans: list[Span] = []
    parts: list[Visibility] = []
    wanted: Places = []
    for slot in draw(st.permutations(range(slots)))[: draw(st.integers(1, slots))]:
        length = draw(st.one_of(st.just(1), st.integers(1, 12)))
        kind = draw(st.sampled_from(KINDS))
        start = 0 if kind == "bidirectional_prefix" else draw(st.integers(0, capacity - length))
        span = Span(slot, start, length)
        part, sets = draw(of_kind(kind, span))
        spans.append(span)
        parts.append(part)
        wanted += sets
    return spans, parts, wanted


KINDS = ("causal", "before", "bidirectional_prefix", "window", "bidirectional_suffix", "tree_of_drafts", "anything")


@st.composite
def of_kind(draw, kind: str, span: Span) -> tuple[Visibility, Places]:
    end = span.start + span.length
    if kind == "anything":
        return draw(anything(span))
    arguments = {
        "causal": st.just(()),
        "before": st.tuples(st.integers(1, end)),
        "bidirectional_prefix": st.tuples(st.integers(0, end)),
        "window": st.tuples(st.integers(1, end), st.integers(0, 5)),
        "bidirectional_suffix": st.tuples(st.integers(0, span.start)),
        "tree_of_drafts": st.tuples(st.tuples(*(st.integers(-1, row - 1) for row in range(span.length)))),
    }
    given = draw(arguments[kind])
    make = getattr(visibility if hasattr(visibility, kind) else trials, kind)
    return make(span, *given), globals()[kind](span, *given)


@st.composite
def anything(draw, span: Span) -> tuple[Visibility, Places]:
    """Two ranges, in any order and overlapping, and bits, also of later rows; each row sees itself."""
    end = span.start + span.length
    bound = st.tuples(st.integers(0, end), st.integers(0, end))
    ranges = [[sorted(draw(bound)), sorted(draw(bound))] for _ in range(span.length)]
    bits = [draw(st.integers(0, 2**span.length - 1)) | 1 << row for row in range(span.length)]
    first = torch.full((span.length,), span.start)
    sets = [written_out(each, bit, span.start) for each, bit in zip(ranges, bits, strict=True)]
    return Visibility(torch.tensor(ranges), torch.tensor(bits), first), sets
