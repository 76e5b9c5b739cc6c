"""Exact match of a chat model's answers on held-out conversations, through the engine that serves it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.markup import escape

from edgeflow.contract import KVName
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.kinds import DraftKind, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import configured_format
from edgeflow.lab.demo.chat.dialogs import Dialog, DialogSource
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import resolve_model
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

QUESTIONS: Final = 500
NEEDED: Final = 0.98  # exact match below which the model is not released
HELD_OUT_SEED: Final = "held out"
CAPACITY: Final = 1024
_CHUNK, _MAX_ANSWER, _MAX_TURNS = 512, 160, 4


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """A question with the expected and the given answer."""

    topic: str
    question: str
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        return self.answer == self.expected


@dataclass(frozen=True, slots=True)
class ChatReport:
    """All questions of an evaluation."""

    graded: tuple[GradedAnswer, ...]

    @property
    def share(self) -> float:
        """Share of exact answers."""
        return sum(each.right for each in self.graded) / len(self.graded)

    @property
    def wrong(self) -> list[GradedAnswer]:
        return [each for each in self.graded if not each.right]

    def topics(self) -> dict[str, tuple[int, int]]:
        """Exact answers and questions per topic."""
        asked = Counter(each.topic for each in self.graded)
        right = Counter(each.topic for each in self.graded if each.right)
        return {topic: (right[topic], asked[topic]) for topic in sorted(asked)}


class Answerer:
    """A chat model that answers greedily, one request at a time. kv: as `chat.kv`; drafts: how answers are drafted."""

    def __init__(
        self, model: ChatModel, capacity: int = CAPACITY, kv: KVName = "model", drafts: DraftKind | None = None
    ) -> None:
        kv_format = configured_format("kv", kv, model.config.attention.kv_format)
        self._model = model
        self._engine = ChatEngine(model, model.decoder.kv_slots(1, capacity, kv_format), drafts=drafts)

    def __call__(self, messages: list[dict[str, str]]) -> str:
        """The answer to the last message."""
        prompt = self._model.chat_prompt(self._model.render(messages))
        generation = Generation(self._engine, prompt, SamplingParams(max_tokens=_MAX_ANSWER))
        for _ in generate(self._engine, generation, _CHUNK):
            pass
        return self._model.tokenizer.decode(generation.tokens)


def held_out_dialogs(questions: int, seed: str = HELD_OUT_SEED) -> Iterator[Dialog]:
    """Conversations of 1 to 4 questions, `questions` in all."""
    source, length = DialogSource(seed, held_out=True), 0
    while questions:
        length = min(length % _MAX_TURNS + 1, questions)
        dialog = source.draw(length)
        questions -= len(dialog.turns)
        yield dialog


def grade(answer: Callable[[list[dict[str, str]]], str], dialog: Dialog) -> Iterator[GradedAnswer]:
    """Ask all turns in order; the conversation continues from the answers that the model gave."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": dialog.opening}] if dialog.opening else []
    for index, turn in enumerate(dialog.turns):
        messages.append({"role": "user", "content": dialog.asked(index)})
        given = answer(messages)
        messages.append({"role": "assistant", "content": given})
        yield GradedAnswer(turn.topic, dialog.asked(index), turn.answer, given)


def evaluate_chat(
    folder: Path,
    questions: int = QUESTIONS,
    seed: str = HELD_OUT_SEED,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int], None] = lambda _: None,
    kv: KVName = "model",
    drafts: DraftKind | None = None,
) -> ChatReport:
    """Grade the model of a checkpoint directory. progress: called with the number of questions asked so far. kv,
    drafts: as in `Answerer`."""
    answer = Answerer(load_chat_model(folder, dtype, torch.device("cpu")), kv=kv, drafts=drafts)
    graded: list[GradedAnswer] = []
    for dialog in held_out_dialogs(questions, seed):
        graded += grade(answer, dialog)
        progress(len(graded))
    return ChatReport(tuple(graded))


def eval_chat_command(model: str, questions: int, seed: str, *, kv: KVName, lookup: bool, as_json: bool) -> int:
    """Print the results; exit code 1 if too few answers are exact for a release."""
    with reporting(Console(stderr=True)) as report:
        result = evaluate_chat(
            resolve_model(model, chat=True),
            questions,
            seed,
            progress=lambda done: report("questions", done, questions),
            kv=kv,
            drafts=Lookup() if lookup else None,
        )
    if as_json:
        print(json.dumps(_as_json(result), indent=2))
    else:
        _show(result)
    return 0 if result.share >= NEEDED else 1


def _as_json(result: ChatReport) -> dict[str, object]:
    return {
        "questions": len(result.graded),
        "exact": result.share,
        "topics": {topic: {"right": right, "asked": asked} for topic, (right, asked) in result.topics().items()},
        "wrong": [asdict(each) for each in result.wrong],
    }


def _show(result: ChatReport) -> None:
    table = FoldingTable("topic", "right", "asked", title="held-out questions, exact match")
    for topic, (right, asked) in result.topics().items():
        table.add_row(topic, str(right), str(asked))
    console = table_console()
    console.print(table)
    for each in result.wrong:
        question = each.question.splitlines()[-1]
        console.print(escape(f"{question}\n  expected: {each.expected}\n  answered: {each.answer}"), soft_wrap=True)
    right = len(result.graded) - len(result.wrong)
    print(f"{right} of {len(result.graded)} answers exact ({result.share:.1%}); a release needs {NEEDED:.0%}")
