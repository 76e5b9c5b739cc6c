"""Prompts of π0.5, whose text contains the state.

Published source: LeRobot's processor_pi05.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeflow.policies.flow.prompts import TokenizedTexts

EDGES = np.linspace(-1.0, 1.0, 257)[:-1]
BINS = range(-1, len(EDGES))


class StateTexts:
    """`Task: …, State: 12 255 -1;` and `Action: ` on a line for itself. dims: numbers of the state."""

    def __init__(self, texts: TokenizedTexts, dims: int) -> None:
        self._texts = texts
        longest = max(BINS, key=lambda number: len(texts.ids(f"State: {number} {number}")))
        self._longest = (longest,) * dims

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame."""
        return self._texts.ids(prompt_text(task, bins(state)))

    def most_rows(self, task: str) -> int:
        """Tokens of a task with a state all of whose numbers take the most of them."""
        return len(self._texts.ids(prompt_text(task, self._longest)))


def bins(state: NDArray[np.float32]) -> tuple[int, ...]:
    """Numbers from -1 to 1 in 256 bins, 0 to 255; anything below is -1, anything above the last."""
    return tuple((np.digitize(state, EDGES) - 1).tolist())


def prompt_text(task: str, numbers: tuple[int, ...]) -> str:
    """The text of a task and of the bins of a state."""
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {cleaned}, State: {' '.join(map(str, numbers))};\nAction: "
