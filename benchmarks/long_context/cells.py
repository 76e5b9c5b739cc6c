"""Cells of the comparison: questions about logs, by kind and by where in the prompt their evidence lies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edgeflow.demo.chat.logs.entries import FAULTS, HELD, LINE_TOKENS, TITLE, RobotLog
from edgeflow.demo.chat.logs.held_out import draw_question
from edgeflow.demo.chat.logs.questions import KINDS, Asked
from edgeflow.models.chat import ChatModel


class Where(StrEnum):
    """The part of the prompt that holds the evidence."""

    COMPRESSED = "compressed part"
    KEPT = "kept part"


@dataclass(frozen=True, slots=True)
class Band:
    """Prompts of `shortest` to `longest` tokens."""

    shortest: int
    longest: int

    @property
    def name(self) -> str:
        return f"{self.shortest}-{self.longest} tokens"


@dataclass(frozen=True, slots=True)
class Cell:
    """Questions that are counted together. summary: those that depend on many lines; otherwise look-ups of one line."""

    band: Band
    where: Where
    summary: bool

    @property
    def name(self) -> str:
        return f"{'summary' if self.summary else 'look-up'}, {self.where}"

    @property
    def decides(self) -> bool:
        """True where a memory is to be better than sink and window."""
        return self.summary and self.where is Where.COMPRESSED

    @property
    def kinds(self) -> list[str]:
        """The kinds of question that are asked in turn. One side comes most often in a whole log only."""
        return [name for name, kind in KINDS.items() if kind.summary == self.summary and name != "most side"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a prompt, in tokens.

    sink: kept at the beginning. out_of_reach: at the end, kept by some row of the comparison; between them and the sink
    everything is compressed or gone in all rows. window: at the end, kept by every row. opening: before the first line.
    question: the fewest and the most behind the last line.
    """

    sink: int
    out_of_reach: int
    window: int
    opening: int
    question: tuple[int, int]

    def region(self, where: Where, lines: int) -> range:
        """The lines of a log that lie in a part as a whole."""
        end = lines * LINE_TOKENS
        if where is Where.COMPRESSED:
            first, stop = self.sink - self.opening, end + self.question[0] - self.out_of_reach
        else:
            first, stop = end + self.question[1] - self.window, end
        return range(max(0, -(-first // LINE_TOKENS)), min(lines, stop // LINE_TOKENS))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt's ids and the expected answer. kind: of KINDS."""

    ids: tuple[int, ...]
    kind: str
    answer: str


def opening_tokens(model: ChatModel) -> int:
    """Tokens before the first line."""
    text = model.render([{"role": "user", "content": f"{TITLE}\n"}])
    return len(model.chat_prompt(text[: text.index(TITLE) + len(TITLE)])) + 1


def question_tokens(model: ChatModel) -> tuple[int, int]:
    """The fewest and the most tokens behind the last line."""
    subjects = (*FAULTS, *HELD)
    texts = [text.format(subject) for kind in KINDS.values() for text in kind.phrasings for subject in subjects]
    lengths = [len(model.chat_prompt(model.render([{"role": "user", "content": f"\n{text}"}]))) for text in texts]
    before = len(model.chat_prompt(model.render([{"role": "user", "content": ""}]).partition("<|im_end|>")[0] + "\n"))
    return min(lengths) - before, max(lengths) - before


def draw_questions(model: ChatModel, cell: Cell, layout: Layout, count: int, seed: str) -> Iterator[Question]:
    """The questions of a cell; the same seed gives the same ones."""
    rng = random.Random(f"long context {seed} {cell.band.name} {cell.name}")
    for index in range(count):
        tokens = rng.randint(cell.band.shortest, cell.band.longest)
        lines = (tokens - layout.opening - layout.question[1]) // LINE_TOKENS
        region = layout.region(cell.where, lines)
        log, asked = draw_question(rng, cell.kinds[index % len(cell.kinds)], lines, region)
        yield Question(_ids(model, log, asked), asked.kind, asked.answer)


def _ids(model: ChatModel, log: RobotLog, asked: Asked) -> tuple[int, ...]:
    return model.chat_prompt(model.render([{"role": "user", "content": f"{log.text()}\n{asked.text}"}])).ids


def cells_of(bands: Sequence[Band]) -> list[Cell]:
    """All cells of some bands."""
    return [Cell(band, where, summary) for band in bands for where in Where for summary in (True, False)]
