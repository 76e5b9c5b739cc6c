"""Lines of integers that are written on the device and read on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.engine.sampling.sample import (
    SampledRows,
    TokenLogprobs,
    bits_of,
    drafted_lines,
    guessed_lines,
    plain_lines,
    read_outcome,
)
from edgeflow.scheduler.plan import DraftForm, Segment


def segment(number: int, **changes: Any) -> Segment[int]:
    return Segment(sequence=number, slot=0, start=0, length=9, stage=1, **changes)


def logprobs_of(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: its log probability [N, 1], ids and log probabilities of others [N, 3]."""
    values = -torch.rand(count, 3, generator=torch.Generator().manual_seed(count)).sort(descending=False).values
    values[0, -1] = -torch.inf
    return -0.1 - torch.arange(count)[:, None] / 7, torch.arange(count * 3).view(count, -1), values


def rows_of(count: int, *, logprobs: bool) -> SampledRows:
    bits = bits_of(*logprobs_of(count)) if logprobs else None
    return SampledRows(torch.arange(count) + 100, torch.arange(count) % 4 != 3, bits)


def told(rows: SampledRows, row: int) -> TokenLogprobs:
    logprob, top_ids, top_logprobs = (each[row].tolist() for each in logprobs_of(len(rows.ids)))
    return TokenLogprobs(*logprob, tuple(zip(top_ids, top_logprobs, strict=True)))


@pytest.mark.parametrize("logprobs", [False, True])
def test_one_row_each(logprobs: bool):
    rows = rows_of(5, logprobs=logprobs)
    for row, line in enumerate(plain_lines(rows).tolist()):
        found = read_outcome(segment(row), line, guessed=False)
        assert (found.sequence, found.tokens, found.finite) == (row, (100 + row,), row != 3)
        assert found.logprobs == ((told(rows, row),) if logprobs else ())
        assert (found.found, found.drafts, found.guesses) == (0, (), ())


@pytest.mark.parametrize("logprobs", [False, True])
@given(st.data())
def test_verified_rows(logprobs: bool, data: st.DataObject):
    """Of several segments: the verified tokens of each, what each found, and the drafts that stand after them."""
    segments, width, standing = (data.draw(st.integers(low, 4)) for low in (1, 1, 0))
    rows = rows_of(segments * width, logprobs=logprobs)
    verified = [data.draw(st.integers(1, width)) for _ in range(segments)]
    found = [data.draw(st.integers(0, standing)) for _ in range(segments)]
    sound = [data.draw(st.integers(0, 1)) for _ in range(segments)]
    drafts = torch.arange(segments * standing).view(segments, -1) + 500
    lines = drafted_lines(rows, torch.tensor(sound), torch.tensor(verified), torch.tensor(found), drafts).tolist()
    assert len(lines) == segments
    for index, line in enumerate(lines):
        read = read_outcome(segment(index, form=DraftForm.CHAIN, samples=width), line, guessed=width > 1)
        first, count = index * width, verified[index]
        assert read.sequence == index and read.finite == bool(sound[index])
        assert read.tokens == tuple(range(100 + first, 100 + first + count))
        assert read.found == found[index]
        assert read.drafts == tuple(drafts[index, : found[index]].tolist())
        expected = tuple(told(rows, row) for row in range(first, first + count)) if logprobs else ()
        assert read.logprobs == expected


def test_guessed_rows():
    """Two segments of three and of two rows, the last one repeated; row 3 is not of finite logits."""
    spread, counts = torch.tensor([[0, 1, 2], [3, 4, 4]]), torch.tensor([[3], [2]])
    lines = guessed_lines(rows_of(5, logprobs=False), spread, counts, torch.tensor([[2], [1]])).tolist()
    first = read_outcome(segment(1, samples=3), lines[0], guessed=True)
    assert (first.tokens, first.guesses, first.finite, first.guesses_finite) == ((100, 101), (102,), True, True)
    second = read_outcome(segment(2, samples=2), lines[1], guessed=True)
    assert (second.tokens, second.guesses, second.finite, second.guesses_finite) == ((103,), (104,), False, False)
