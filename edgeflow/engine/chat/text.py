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
    where the executor is to know them.
    """

    hidden: Tensor
    positions: Tensor
    shift: int = 0
    ids: Sequence[int] = ()


class TextTokens:
    """The contract of a chat model. Payload: embedded rows. Numbers: the token of each row; for M-RoPE three positions
    of each row, and the shift.
    """

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.drafting = None
        self.components = 1 if model.vision is None else 3
        self._row_bytes = model.config.hidden_size * model.decoder.dtype.itemsize

    @property
    def decoder(self) -> Decoder:
        return self._model.decoder

    def count(self, rows: int) -> int:
        return 3 * rows + 1 if self.components > 1 else rows

    def payload_bytes(self, rows: int) -> int:
        return rows * self._row_bytes

    def numbers(self, prompt: Chunk, rows: int) -> Sequence[int]:
        if self.components == 1:
            return prompt.ids
        padded = [[*line, *[0] * (rows - len(line))] for line in prompt.positions.expand(3, -1).tolist()]
        return [*padded[0], *padded[1], *padded[2], prompt.shift]

    def payload(self, prompt: Chunk) -> Tensor:
        return prompt.hidden

    def embed(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:  # noqa: ARG002
        hidden = payload.view(self._model.decoder.dtype).view(-1, self._model.config.hidden_size)
        return list(torch.split(hidden, list(rows)))

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002
        if self.components == 1:
            return None
        return torch.cat([each[:-1].view(3, -1) for each in numbers], 1), torch.stack([each[-1] for each in numbers])
