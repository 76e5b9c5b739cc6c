"""Token generation by a chat model: a chunk of a prompt is embedded rows, which may be those of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.policy import Decoder
from edgeflow.models.chat import ChatModel


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a prompt. hidden [n, E]; positions [C, n]: of RoPE, on the host; shift: as of Prompt. ids: their tokens,
    and the one behind them if the prompt goes on.
    """

    hidden: Tensor
    positions: Tensor
    shift: int = 0
    ids: Sequence[int] = ()


class TextTokens:
    """The contract of a chat model. Payload: embedded rows. Numbers: for M-RoPE three positions of each row, and the
    shift; then, where they are kept, the token of each row and the one behind the last.
    """

    def __init__(self, model: ChatModel, *, keeps_ids: bool = False) -> None:
        self._model = model
        self.keeps_ids = keeps_ids
        self.drafting = None
        self.components = 1 if model.vision is None else 3
        self._row_bytes = model.config.hidden_size * model.decoder.dtype.itemsize

    @property
    def decoder(self) -> Decoder:
        return self._model.decoder

    def count(self, rows: int) -> int:
        return self._positions(rows) + (rows + 1 if self.keeps_ids else 0)

    def payload_bytes(self, rows: int) -> int:
        return rows * self._row_bytes

    def numbers(self, prompt: Chunk, rows: int) -> Sequence[int]:
        ids = prompt.ids if self.keeps_ids else ()
        if self.components == 1:
            return ids
        padded = [[*line, *[0] * (rows - len(line))] for line in prompt.positions.expand(3, -1).tolist()]
        return [*padded[0], *padded[1], *padded[2], prompt.shift, *ids]

    def payload(self, prompt: Chunk) -> Tensor:
        return prompt.hidden

    def embed(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:  # noqa: ARG002
        hidden = payload.view(self._model.decoder.dtype).view(-1, self._model.config.hidden_size)
        return list(torch.split(hidden, list(rows)))

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:
        return [each[self._positions(count) :] for each, count in zip(numbers, rows, strict=True)]

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        if self.components == 1:
            return None
        given = [each[: self._positions(count)] for each, count in zip(numbers, rows, strict=True)]
        return torch.cat([each[:-1].view(3, -1) for each in given], 1), torch.stack([each[-1] for each in given])

    def _positions(self, rows: int) -> int:
        """Numbers of the positions of so many rows."""
        return 3 * rows + 1 if self.components > 1 else 0
