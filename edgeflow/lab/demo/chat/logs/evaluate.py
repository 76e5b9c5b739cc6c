"""Exact match of a chat model's answers about logs, through the engine that serves it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from edgeflow.lab.demo.chat.evaluate import Answerer
from edgeflow.lab.demo.chat.logs.held_out import EvidencePlace, LogQuestion, held_out_questions
from edgeflow.lab.demo.chat.logs.questions import KINDS
from edgeflow.models.chat import load_chat_model

QUESTIONS: Final = 512
NEEDED: Final = 0.9  # exact match below which the model is not released
LONGEST: Final = 2_040  # tokens of a prompt
CAPACITY: Final = 2_048


@dataclass(frozen=True, slots=True)
class ExactCount:
    """Exact answers among questions."""

    right: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class GradedLogAnswer:
    """A question with the answer that the model gave."""

    question: LogQuestion
    answer: str

    @property
    def right(self) -> bool:
        return self.answer == self.question.asked.answer


@dataclass(frozen=True, slots=True)
class LogReport:
    """All questions of an evaluation."""

    graded: tuple[GradedLogAnswer, ...]

    @property
    def share(self) -> float:
        """Share of exact answers."""
        return sum(each.right for each in self.graded) / len(self.graded)

    def cells(self) -> dict[tuple[str, EvidencePlace], ExactCount]:
        """Exact answers by kind of question and by the place of the evidence."""
        found: dict[tuple[str, EvidencePlace], ExactCount] = defaultdict(ExactCount)
        for each in self.graded:
            cell = each.question.asked.kind, each.question.place
            found[cell] = ExactCount(found[cell].right + each.right, found[cell].asked + 1)
        return dict(found)

    def summary(self, *, asked: bool) -> ExactCount:
        """Exact answers to questions that depend on many lines; asked: False for questions about a single line."""
        rights = [each.right for each in self.graded if KINDS[each.question.asked.kind].summary == asked]
        return ExactCount(sum(rights), len(rights))


def evaluate_logs(
    folder: Path,
    questions: int = QUESTIONS,
    seed: str = "0",
    longest: int = LONGEST,
    progress: Callable[[int], None] = lambda _: None,
) -> LogReport:
    """Grade the model of a checkpoint directory. progress: called with the number of questions asked so far."""
    answer = Answerer(load_chat_model(folder, torch.float32, torch.device("cpu")), CAPACITY)
    graded = []
    for question in held_out_questions(questions, seed, longest):
        graded.append(GradedLogAnswer(question, answer(question.messages())))
        progress(len(graded))
    return LogReport(tuple(graded))
