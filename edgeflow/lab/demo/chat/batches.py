"""Conversations as rows of tokens; only the answers are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.chat.dialogs import Dialog, DialogSource
from edgeflow.lab.demo.chat.tokenizer import END, END_OF_TEXT, START, chat_text

ASIDE: Final = -100  # the target where nothing is learned


@dataclass(frozen=True, slots=True, eq=False)
class ChatBatch:
    """One batch."""

    ids: Tensor
    """`[B, L]`."""
    targets: Tensor
    """`[B, L]`, the next id inside answers, else ASIDE."""


class Batcher:
    """Makes batches with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        (self._pad,) = tokenizer.encode(END_OF_TEXT).ids

    def draw(self, source: DialogSource, batches: int, rows: int, turns: int) -> list[ChatBatch]:
        """Draw batches of `rows` conversations of `turns` questions, grouped by similar length."""
        dialogs = sorted((source.draw(turns) for _ in range(batches * rows)), key=_length)
        return [self.pack(dialogs[first : first + rows]) for first in range(0, len(dialogs), rows)]

    def pack(self, dialogs: Sequence[Dialog]) -> ChatBatch:
        """Pack one conversation per row, with padding at the end."""
        texts = [chat_text(dialog.messages(len(dialog.turns))) for dialog in dialogs]
        rows = [list(each.ids) for each in self._tokenizer.encode_batch(texts)]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._pad)
        targets = torch.full((len(rows), length), ASIDE)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            for first, last in answer_spans(self._tokenizer, row):
                targets[index, first - 1 : last - 1] = ids[index, first:last]
        return ChatBatch(ids, targets)


def answer_spans(tokenizer: Tokenizer, row: Sequence[int]) -> list[tuple[int, int]]:
    """The spans of the answers in a conversation's ids, each including its end token."""
    (start,), (end,) = tokenizer.encode(START).ids, tokenizer.encode(END).ids
    opening = [start, *tokenizer.encode("assistant\n").ids]
    size, found = len(opening), []
    for place in range(len(row)):
        if row[place] == start and list(row[place : place + size]) == opening:
            found.append((place + size, row.index(end, place) + 1))
    return found


def _length(dialog: Dialog) -> int:
    """Approximate length in characters."""
    return (
        len(dialog.opening) + len(dialog.report) + sum(len(turn.question) + len(turn.answer) for turn in dialog.turns)
    )
