"""Calibration samples without a file: dialogs of the embedded chat model, and texts that a model writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.demo.chat.dialogs import DialogSource
from edgeflow.lab.quantize.calibration.blocks import BLOCKS, LENGTH, Calibration, of_samples
from edgeflow.models.chat import load_chat_model
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError

MOST_QUESTIONS = 4
HELD_OUT_DIALOGS = 40
WRITTEN_TOKENS = 256
HELD_OUT_WRITTEN = 16
HELD_OUT_SEED = 1000
"""Seeds from here on are those of held-out texts."""


def dialog_calibration(tokenizer: TextTokenizer, template: ChatTemplate, seed: int) -> Calibration:
    """Conversations about a robot's state, from the training side of their generator and from its held-out side."""
    shown = _dialogs(f"awq calibration {seed}", tokenizer, template, held_out=False)
    other = _dialogs("awq held out 0", tokenizer, template, held_out=True)
    samples = _until(BLOCKS * LENGTH, shown)
    return of_samples("dialogs about a robot's state", samples, [next(other) for _ in range(HELD_OUT_DIALOGS)])


def written_calibration(folder: Path, seed: int, progress: Callable[[int, int], None]) -> Calibration:
    """Texts that the model writes from its first token, at temperature 1; ConfigError for a tokenizer without one.

    progress: called with the tokens written and those needed.
    """
    writer = Writer(folder)
    needed = BLOCKS * LENGTH
    samples: list[list[int]] = []
    while (tokens := sum(map(len, samples))) < needed:
        progress(tokens, needed)
        samples.append(writer.text(len(samples) + (seed << 20)))
    held_out = [writer.text(-HELD_OUT_SEED - number) for number in range(HELD_OUT_WRITTEN)]
    return of_samples("texts written by the model", samples, held_out)


class Writer:
    """A model that writes texts of at most some tokens; ConfigError where its tokenizer puts no token before a text."""

    def __init__(self, folder: Path, tokens: int = WRITTEN_TOKENS) -> None:
        self._model = load_chat_model(folder, torch.float32, torch.device("cpu"))
        self._first = self._model.tokenizer.encode("", special=True)
        if not self._first:
            raise ConfigError(
                f"calibration: the tokenizer of {folder} has no first token to write from: give a text file"
            )
        self._tokens = tokens
        self._engine = ChatEngine(self._model, self._model.decoder.kv_slots(1, tokens))

    def text(self, seed: int) -> list[int]:
        """The token ids of a text, its first token with them; the same seed gives the same text."""
        params = SamplingParams(max_tokens=self._tokens - len(self._first), temperature=1.0, seed=seed)
        generation = Generation(self._engine, self._model.prompt(self._first), params)
        for _ in generate(self._engine, generation, LENGTH):
            pass
        return [*self._first, *generation.tokens]


def _dialogs(seed: str, tokenizer: TextTokenizer, template: ChatTemplate, *, held_out: bool) -> Iterator[list[int]]:
    """Conversations of 1 to 4 questions, without end."""
    source, number = DialogSource(seed, held_out=held_out), 0
    while True:
        dialog = source.draw(number % MOST_QUESTIONS + 1)
        number += 1
        text = template(dialog.messages(len(dialog.turns)), answer=False)
        yield tokenizer.encode(text, special=False)


def _until(tokens: int, samples: Iterator[list[int]]) -> list[list[int]]:
    """The first samples that hold this many tokens together."""
    found: list[list[int]] = []
    while sum(map(len, found)) < tokens:
        found.append(next(samples))
    return found
