"""`edgeflow eval-chat`: exact match on held-out questions, topic by topic."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from edgeflow.contract import KVName
from edgeflow.engine.drafts.kinds import Lookup
from edgeflow.lab.demo.chat.evaluate import NEEDED, ChatReport, evaluate_chat
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import resolve_model
from edgeflow_client.loadtest.terminal import FoldingTable, table_console


def eval_chat_command(model: str, questions: int, seed: str, *, kv: KVName, lookup: bool, as_json: bool) -> int:
    """Print the results; exit code 1 when too few answers are exact for the model to be shipped."""
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
    print(f"{right} of {len(result.graded)} answers exact ({result.share:.1%}); shipping needs {NEEDED:.0%}")
