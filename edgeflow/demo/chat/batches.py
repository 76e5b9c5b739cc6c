"""Turns conversations into rows of tokens; only the answers are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.demo.chat.dialogs import Dialog, DialogSource
from edgeflow.demo.chat.tokenizer import END, END_OF_TEXT, START, chat_text

ASIDE: Final = -100  # the target where nothing is learned


@dataclass(frozen=True, slots=True, eq=False)
class ChatBatch:
    """One batch. ids: `[B, L]`. targets: `[B, L]`, the next id inside answers, else ASIDE."""

    ids: Tensor
    targets: Tensor


class Batcher:
    """Makes batches with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start, self._end, self._pad = (tokenizer.encode(sign).ids[0] for sign in (START, END, END_OF_TEXT))
        self._opening = [self._start, *tokenizer.encode("assistant\n").ids]

    def draw(self, source: DialogSource, batches: int, rows: int, turns: int) -> list[ChatBatch]:
        """Draw batches of `rows` conversations of `turns` questions, grouped by similar length."""
        dialogs = sorted((source.draw(turns) for _ in range(batches * rows)), key=_length)
        return [self.pack(dialogs[first : first + rows]) for first in range(0, len(dialogs), rows)]

    def pack(self, dialogs: Sequence[Dialog]) -> ChatBatch:
        """Pack one conversation per row, padded at the end."""
        texts = [chat_text(dialog.messages(len(dialog.turns))) for dialog in dialogs]
        rows = [list(each.ids) for each in self._tokenizer.encode_batch(texts)]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._pad)
        targets = torch.full((len(rows), length), ASIDE)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            for first, last in self._answers(row):
                targets[index, first - 1 : last - 1] = ids[index, first:last]
        return ChatBatch(ids, targets)

    def _answers(self, row: list[int]) -> list[tuple[int, int]]:
        """The spans of the answers, each including its end token."""
        size, found = len(self._opening), []
        for place in range(len(row)):
            if row[place] == self._start and row[place : place + size] == self._opening:
                found.append((place + size, row.index(self._end, place) + 1))
        return found


def _length(dialog: Dialog) -> int:
    """Approximate length in characters."""
    return (
        len(dialog.opening) + len(dialog.report) + sum(len(turn.question) + len(turn.answer) for turn in dialog.turns)
    )
