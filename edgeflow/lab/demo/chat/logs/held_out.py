"""Held-out questions about logs: one question per log, with control over the log's length and the place of the
evidence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edgeflow.lab.demo.chat.logs.dialogs import FRAME_TOKENS, TURN_TOKENS
from edgeflow.lab.demo.chat.logs.questions import KINDS, LogQuery, ask
from edgeflow.lab.demo.chat.logs.robot_log import LINE_TOKENS, LogSource, RobotLog

SHORTEST: Final = 256  # tokens of a prompt


class EvidencePlace(StrEnum):
    """The part of the log in which all evidence lies."""

    START = "first third"
    MIDDLE = "middle third"
    END = "last third"
    ANYWHERE = "anywhere"

    def region(self, lines: int) -> range:
        """Its lines in a log of `lines`."""
        if self is EvidencePlace.ANYWHERE:
            return range(lines)
        third = (EvidencePlace.START, EvidencePlace.MIDDLE, EvidencePlace.END).index(self)
        return range(lines * third // 3, lines * (third + 1) // 3)


@dataclass(frozen=True, slots=True)
class LogQuestion:
    """A log with one question."""

    log: RobotLog
    asked: LogQuery
    place: EvidencePlace

    def messages(self) -> list[dict[str, str]]:
        """The form of a chat request."""
        return [{"role": "user", "content": f"{self.log.text()}\n{self.asked.text}"}]


def held_out_questions(questions: int, seed: str, longest: int) -> Iterator[LogQuestion]:
    """Questions of all kinds about all places in turn, in prompts of SHORTEST to `longest` tokens."""
    rng = random.Random(f"held-out logs {seed}")
    cells = [(kind, place) for place in EvidencePlace for kind in KINDS]
    for index in range(questions):
        kind, place = cells[index % len(cells)]
        lines = (rng.randint(SHORTEST, longest) - FRAME_TOKENS - TURN_TOKENS) // LINE_TOKENS
        log, asked = draw_question(rng, kind, lines, place.region(lines))
        yield LogQuestion(log, asked, place)


def draw_question(rng: random.Random, kind: str, lines: int, region: range) -> tuple[RobotLog, LogQuery]:
    """A log that allows a question of the kind, with its evidence in the region, and the question."""
    while True:
        log = LogSource(rng).draw(lines, region)
        asked = ask(log, kind, region, rng)
        if asked is not None:
            return log, asked
