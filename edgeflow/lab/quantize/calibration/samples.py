"""Calibration samples, joined and cut into blocks as AutoAWQ does, and other text to evaluate the result on.

They are paragraphs of a file, dialogs of the embedded chat model, or texts that the model writes itself.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.demo.chat.dialogs import DialogSource
from edgeflow.models.chat import load_chat_model
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

LENGTH = 512
BLOCKS = 16
HELD_OUT_SHARE = 8
"""One sample in this many is held out."""
HELD_OUT_TOKENS = 8 * LENGTH
MAX_FILE_BYTES = 64 << 20
BUILT_IN_TEXT = Path(__file__).with_name("text.md")
MOST_QUESTIONS = 4
HELD_OUT_DIALOGS = 40
WRITTEN_TOKENS = 256
HELD_OUT_WRITTEN = 16
HELD_OUT_SEED = 1000
"""Seeds from this one on generate held-out texts."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationTokens:
    """Token ids of a calibration."""

    name: str
    """Name of their source."""
    blocks: Tensor
    """int64 [16, 512], for the search."""
    held_out: tuple[Tensor, ...]
    """Texts of at most 512 tokens, for the report."""

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens: equal for equal calibrations."""
        flat = torch.cat([self.blocks.flatten(), *self.held_out])
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def of_samples(name: str, samples: Iterable[Sequence[int]], held_out: Iterable[Sequence[int]]) -> CalibrationTokens:
    """Drop samples of more than 512 tokens, join the others without a separator and cut them into blocks; drop the
    remainder.

    ConfigError if there are too few, with the number of tokens needed.
    """
    kept = [sample for sample in samples if len(sample) <= LENGTH]
    flat = [token for sample in kept for token in sample]
    texts = [torch.tensor(text) for text in held_out if 1 < len(text) <= LENGTH]
    if len(flat) < BLOCKS * LENGTH or not texts:
        raise ConfigError(
            f"calibration: {name} has {len(flat)} tokens in {len(kept)} samples of at most {LENGTH} tokens, and "
            f"{len(texts)} held-out samples; {BLOCKS * LENGTH} tokens ({BLOCKS} blocks of {LENGTH}) and a held-out "
            f"sample are needed"
        )
    return CalibrationTokens(name, torch.tensor(flat[: BLOCKS * LENGTH]).view(BLOCKS, LENGTH), tuple(texts))


def of_text(path: Path, tokenizer: TextTokenizer, seed: int, name: str = "") -> CalibrationTokens:
    """The paragraphs of a text file (UTF-8, separated by empty lines) are the samples.

    Every eighth is held out; the seed shuffles the others. name: the file's path if empty.
    """
    name = name or str(path)
    paragraphs = _paragraphs(path)
    samples = [tokenizer.encode(text, special=True) for text in paragraphs]
    held_out = [sample for number, sample in enumerate(samples) if number % HELD_OUT_SHARE == HELD_OUT_SHARE - 1]
    shown = [sample for number, sample in enumerate(samples) if number % HELD_OUT_SHARE != HELD_OUT_SHARE - 1]
    random.Random(seed).shuffle(shown)
    return of_samples(name, shown, _up_to(HELD_OUT_TOKENS, held_out))


def _paragraphs(path: Path) -> list[str]:
    try:
        text = read_regular(path, MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"calibration: cannot read {path}: {error.strerror}: give a text file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"calibration: {path} is not UTF-8 text") from error
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _up_to(tokens: int, samples: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The first samples that together hold this many tokens."""
    found: list[Sequence[int]] = []
    for sample in samples:
        if sum(map(len, found)) >= tokens:
            break
        found.append(sample)
    return found


def dialog_calibration(tokenizer: TextTokenizer, template: ChatTemplate, seed: int) -> CalibrationTokens:
    """Conversations about a robot's state, from the training side of their generator and from its held-out side."""
    shown = _dialogs(f"awq calibration {seed}", tokenizer, template, held_out=False)
    other = _dialogs("awq held out 0", tokenizer, template, held_out=True)
    samples = _up_to(BLOCKS * LENGTH, shown)
    return of_samples("dialogs about a robot's state", samples, [next(other) for _ in range(HELD_OUT_DIALOGS)])


def written_calibration(folder: Path, seed: int, progress: Callable[[int, int], None]) -> CalibrationTokens:
    """Texts that the model writes from its first token, at temperature 1; ConfigError if its tokenizer has none.

    progress: called with the tokens written and the tokens needed.
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
    """A model that writes texts of limited length; ConfigError if its tokenizer puts no token before a text."""

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
        """The token ids of a text, including the first token; the same seed gives the same text."""
        params = SamplingParams(max_tokens=self._tokens - len(self._first), temperature=1.0, seed=seed)
        generation = Generation(self._engine, self._model.prompt(self._first), params)
        for _ in generate(self._engine, generation, LENGTH):
            pass
        return [*self._first, *generation.tokens]


def _dialogs(seed: str, tokenizer: TextTokenizer, template: ChatTemplate, *, held_out: bool) -> Iterator[list[int]]:
    """Conversations of 1 to 4 questions, endlessly."""
    source, number = DialogSource(seed, held_out=held_out), 0
    while True:
        dialog = source.draw(number % MOST_QUESTIONS + 1)
        number += 1
        text = template(dialog.messages(len(dialog.turns)), answer=False)
        yield tokenizer.encode(text, special=False)
