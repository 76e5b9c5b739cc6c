"""Prompt look-up against no drafts: the embedded chat model answers its held-out questions.

    .venv/bin/python -m benchmarks.drafts --json FILE

Every question is answered in both ways right after each other, in turns, on one thread; all tokens must be identical.
The rate is that of tokens after the first one, as a client sees it: it counts everything but the prompt. `--drafts
none` answers only without drafts, to compare two checkouts. Exit code 1 where a token differs, or where look-up is
less than 1.3 times as fast.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.kinds import Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.demo.chat.evaluate import CAPACITY, held_out_dialogs
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
from edgeflow_client.loadtest.terminal import table_console

BAR = 1.3
CHUNK, MOST_TOKENS = 512, 160


@dataclass
class AnsweringFigures:
    """One way of answering, and its figures of every round."""

    engine: ChatEngine
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    plain: int = 0
    seconds: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    def answer(self, prompt: Prompt) -> list[int]:
        """Answer greedily; the seconds count for the last round."""
        generation = Generation(self.engine, prompt, SamplingParams(max_tokens=MOST_TOKENS))
        begun, first = time.perf_counter(), 0.0
        for sampled in generate(self.engine, generation, CHUNK):
            first = first or (time.perf_counter() if sampled is not None else 0.0)
        ended, counts = time.perf_counter(), generation.plan.drafts.counts
        self.seconds[-1] += ended - first
        self.whole_s[-1] += ended - begun
        self.tokens += len(generation.tokens) - 1
        self.passes += counts.drafts + counts.plain
        self.drafted, self.accepted = self.drafted + counts.drafted, self.accepted + counts.accepted
        self.plain += counts.plain
        return generation.tokens

    def figures(self) -> dict[str, float]:
        """Means over all rounds."""
        return {
            "tokens_per_s": self.tokens / sum(self.seconds),
            "tokens_per_pass": self.tokens / self.passes,
            "ms_per_pass": 1e3 * sum(self.seconds) / self.passes,
            "accepted_share": self.accepted / self.drafted if self.drafted else 0.0,
            "plain_share": self.plain / self.passes,
        }


def main() -> None:
    """Measure, print the table, and write the file."""
    arguments = _arguments()
    torch.set_num_threads(1)
    model = load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, torch.device("cpu"))
    prompts = list(_prompts(model, arguments.questions))
    sides = {name: AnsweringFigures(_engine(model, name)) for name in arguments.drafts}
    differing = 0
    for _ in range(arguments.rounds + 1):  # the first one warms up
        for side in sides.values():
            side.seconds.append(0.0)
            side.whole_s.append(0.0)
        for prompt in prompts:
            answers = [side.answer(prompt) for side in sides.values()]
            differing += any(answer != answers[0] for answer in answers)
    for side in sides.values():
        side.tokens = side.tokens * arguments.rounds // (arguments.rounds + 1)
        side.passes = side.passes * arguments.rounds // (arguments.rounds + 1)
        side.plain = side.plain * arguments.rounds // (arguments.rounds + 1)
        del side.seconds[0], side.whole_s[0]
    ratios = _ratios(sides, "seconds"), _ratios(sides, "whole_s")
    _show(sides, *ratios)
    report = {"questions": len(prompts), "differing": differing, "ratios": ratios[0], "whole_ratios": ratios[1]}
    keep(arguments.json, {**machine_facts(), **report, "sides": {name: side.figures() for name, side in sides.items()}})
    print(f"{differing} of {len(prompts) * (arguments.rounds + 1)} answers differ")
    sys.exit(1 if differing or (ratios[0] and median(ratios[0]) < BAR) else 0)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--questions", type=int, default=200, help="held-out questions")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--drafts", nargs="+", choices=["none", "lookup"], default=["none", "lookup"])
    return parser.parse_args()


def _engine(model: ChatModel, name: str) -> ChatEngine:
    return ChatEngine(model, model.decoder.kv_slots(1, CAPACITY), drafts=Lookup() if name == "lookup" else None)


def _prompts(model: ChatModel, questions: int) -> Iterator[Prompt]:
    """The questions of `edgeflow eval-chat`; conversations go on from the expected answers."""
    for dialog in held_out_dialogs(questions):
        messages = [{"role": "system", "content": dialog.opening}] if dialog.opening else []
        for index, turn in enumerate(dialog.turns):
            messages.append({"role": "user", "content": dialog.asked(index)})
            yield model.chat_prompt(model.render(messages))
            messages.append({"role": "assistant", "content": turn.answer})


def _ratios(sides: dict[str, AnsweringFigures], name: str) -> list[float]:
    """How many times as fast look-up is, of each round."""
    if len(sides) < 2:
        return []
    pairs = zip(getattr(sides["none"], name), getattr(sides["lookup"], name), strict=True)
    return [without / drafted for without, drafted in pairs]


def _show(sides: dict[str, AnsweringFigures], ratios: list[float], whole: list[float]) -> None:
    table = Table("", "tokens/s", "tokens per pass", "ms per pass", "drafts accepted", "passes without drafts")
    for name, side in sides.items():
        found = side.figures()
        shares = f"{found['accepted_share']:.1%}", f"{found['plain_share']:.1%}"
        rates = f"{found['tokens_per_s']:.0f}", f"{found['tokens_per_pass']:.2f}", f"{found['ms_per_pass']:.2f}"
        table.add_row(name, *rates, *shares)
    table_console().print(table)
    if ratios:
        print(f"look-up: {median(ratios):.2f} times the tokens per second ({min(ratios):.2f} to {max(ratios):.2f})")
        print(
            f"whole answers, prompt included: {median(whole):.2f} times as fast ({min(whole):.2f} to {max(whole):.2f})"
        )


if __name__ == "__main__":
    main()
