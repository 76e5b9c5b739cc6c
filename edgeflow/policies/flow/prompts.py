"""Texts to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError


class TokenizedTexts:
    """The tokenizer of a policy. most: tokens of a text; the rest is cut off. rows: of the embedding."""

    def __init__(self, folder: Path, most: int, rows: int) -> None:
        self._tokenizer = TextTokenizer(folder, rows)
        self._most = most
        if not self._tokenizer.encode("a", special=True):
            raise CheckpointError(f"{folder} has a tokenizer without tokens: copy the checkpoint again")

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text, BOS first where the tokenizer has one; InvalidArgument for tokens without an embedding,
        such as PaliGemma's <image>."""
        return tuple(self._tokenizer.encode(text, special=True, field="instruction")[: self._most])


class Texts(Protocol):
    """The prompts of a family. States are normalised, without padding."""

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame."""
        ...

    def most_rows(self, task: str) -> int:
        """The most tokens of a task's prompt with any state."""
        ...


class TaskTexts:
    """Texts of SmolVLA and π0: the task, and a newline where it does not end in one. They do not read the state."""

    def __init__(self, texts: TokenizedTexts) -> None:
        self._texts = texts

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:  # noqa: ARG002
        """The prompt of a frame."""
        return self._texts.ids(task if task.endswith("\n") else f"{task}\n")

    def most_rows(self, task: str) -> int:
        """Tokens of a task."""
        return len(self.ids(task, np.empty(0, np.float32)))
