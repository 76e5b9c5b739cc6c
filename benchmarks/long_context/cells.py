"""Cells of the comparison: questions about logs, by kind and by where in the prompt their evidence lies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edgeflow.lab.demo.chat.logs.held_out import draw_question
from edgeflow.lab.demo.chat.logs.questions import KINDS, LogQuery
from edgeflow.lab.demo.chat.logs.robot_log import FAULTS, HELD, LINE_TOKENS, MOST_LINES, TITLE, RobotLog
from edgeflow.models.chat import ChatModel
from edgeflow_client.errors import ConfigError

MOST_TOKENS: Final = MOST_LINES * LINE_TOKENS
LEAST_LINES: Final = 8  # lines of a part that can hold the evidence of any question
NO_LINES, MANY_LINES = "none", "> 40"
EVIDENCE: Final = (NO_LINES, "1-5", "6-15", "16-40", MANY_LINES)
_MOST: Final = (0, 5, 15, 40)  # lines of each group but the last


class Where(StrEnum):
    """The part of the prompt that holds the evidence."""

    COMPRESSED = "compressed part"
    KEPT = "kept part"


@dataclass(frozen=True, slots=True)
class Band:
    """Prompts of `shortest` to `longest` tokens; ConfigError if there are none."""

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ConfigError(f"band: SHORTEST is at most LONGEST, got {self.shortest} {self.longest}")
        if self.longest > MOST_TOKENS:
            raise ConfigError(
                f"band: LONGEST is at most {MOST_TOKENS}, since a log has up to {MOST_LINES} lines, got {self.longest}"
            )

    @property
    def name(self) -> str:
        return f"{self.shortest}-{self.longest} tokens"


@dataclass(frozen=True, slots=True)
class QuestionCell:
    """Questions that are counted together."""

    band: Band
    where: Where
    summary: bool
    """True for questions that depend on many lines, false for look-ups of one line."""

    @property
    def name(self) -> str:
        return f"{'summary' if self.summary else 'look-up'}, {self.where}"

    @property
    def is_decisive(self) -> bool:
        """True where a memory should be better than sink and window."""
        return self.summary and self.where is Where.COMPRESSED

    @property
    def kinds(self) -> list[str]:
        """The kinds of question that are asked in turn. One, about the most frequent side, needs a whole log."""
        return [name for name, kind in KINDS.items() if kind.summary == self.summary and name != "most side"]

    @property
    def families(self) -> list[str]:
        """The families of its kinds."""
        return list(dict.fromkeys(map(family, self.kinds)))


def family(kind: str) -> str:
    """`ever`, `most` or `look-up`."""
    return kind.split()[0] if KINDS[kind].summary else "look-up"


def evidence(lines: int) -> str:
    """The group in EVIDENCE of a question whose answer depends on `lines` lines."""
    return next((name for name, most in zip(EVIDENCE, _MOST, strict=False) if lines <= most), MANY_LINES)


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """The parts of a prompt, in tokens."""

    sink: int
    """Tokens kept at the start."""
    out_of_reach: int
    """Tokens at the end that are kept by some row of the comparison; between them and the sink everything is
    compressed or gone in all rows.
    """
    window: int
    """Tokens at the end that are kept by every row."""
    opening: int
    """Tokens before the first line."""
    question: tuple[int, int]
    """The fewest and the most tokens after the last line."""

    def check(self, band: Band) -> None:
        """Raise ConfigError if a part of the shortest prompts holds too few lines for a question."""
        kept = len(self.region(Where.KEPT, MOST_LINES))
        if kept < LEAST_LINES:
            raise ConfigError(
                f"gate: a window of {self.window} holds {kept} whole lines, at least {LEAST_LINES} needed"
            )
        if band.shortest < self.shortest:
            raise ConfigError(
                f"band: SHORTEST is at least {self.shortest} with this gate, since {LEAST_LINES} lines are compressed "
                f"then, got {band.shortest}"
            )

    @property
    def shortest(self) -> int:
        """The fewest tokens of a prompt whose compressed part holds LEAST_LINES."""
        before = max(0, -(-(self.sink - self.opening) // LINE_TOKENS)) + LEAST_LINES
        behind = -(-(self.out_of_reach - self.question[0]) // LINE_TOKENS)
        return (before + max(0, behind)) * LINE_TOKENS + self.opening + self.question[1]

    def lines(self, tokens: int) -> int:
        """The lines of a log in a prompt of at most `tokens`."""
        return (tokens - self.opening - self.question[1]) // LINE_TOKENS

    def region(self, where: Where, lines: int) -> range:
        """The lines of a log that lie completely in a part."""
        end = lines * LINE_TOKENS
        if where is Where.COMPRESSED:
            first, stop = self.sink - self.opening, end + self.question[0] - self.out_of_reach
        else:
            first, stop = end + self.question[1] - self.window, end
        return range(max(0, -(-first // LINE_TOKENS)), min(lines, stop // LINE_TOKENS))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt's ids and the expected answer."""

    ids: tuple[int, ...]
    kind: str
    """Kind of the question, from KINDS."""
    answer: str
    lines: int
    """Number of lines that the answer depends on."""


def opening_tokens(model: ChatModel) -> int:
    """Tokens before the first line."""
    text = model.render([{"role": "user", "content": f"{TITLE}\n"}])
    return len(model.chat_prompt(text[: text.index(TITLE) + len(TITLE)])) + 1


def question_tokens(model: ChatModel) -> tuple[int, int]:
    """The fewest and the most tokens after the last line."""
    subjects = (*FAULTS, *HELD)
    texts = [text.format(subject) for kind in KINDS.values() for text in kind.phrasings for subject in subjects]
    lengths = [len(model.chat_prompt(model.render([{"role": "user", "content": f"\n{text}"}]))) for text in texts]
    before = len(model.chat_prompt(model.render([{"role": "user", "content": ""}]).partition("<|im_end|>")[0] + "\n"))
    return min(lengths) - before, max(lengths) - before


def draw_questions(
    model: ChatModel, cell: QuestionCell, layout: PromptLayout, count: int, seed: str
) -> Iterator[Question]:
    """The questions of a cell; the same seed gives the same ones."""
    rng = random.Random(f"long context {seed} {cell.band.name} {cell.name}")
    for index in range(count):
        lines = layout.lines(rng.randint(cell.band.shortest, cell.band.longest))
        region = layout.region(cell.where, lines)
        log, asked = draw_question(rng, cell.kinds[index % len(cell.kinds)], lines, region)
        yield Question(_ids(model, log, asked), asked.kind, asked.answer, len(asked.lines))


def _ids(model: ChatModel, log: RobotLog, asked: LogQuery) -> tuple[int, ...]:
    return model.chat_prompt(model.render([{"role": "user", "content": f"{log.text()}\n{asked.text}"}])).ids


def cells_of(bands: Sequence[Band]) -> list[QuestionCell]:
    """All cells of the bands."""
    return [QuestionCell(band, where, summary) for band in bands for where in Where for summary in (True, False)]
