"""`edgeflow eval-logs`: exact match on held-out questions about logs, by kind and place; and `edgeflow draw-logs`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from rich.console import Console

from edgeflow.lab.demo.chat.logs.evaluate import LONGEST, NEEDED, ExactCount, LogReport, evaluate_logs
from edgeflow.lab.demo.chat.logs.held_out import EvidencePlace
from edgeflow.lab.demo.chat.logs.long_logs import LongLogs, write_long_logs
from edgeflow.lab.demo.chat.logs.questions import KINDS
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import resolve_model
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console


def eval_logs_command(model: str, questions: int, seed: str, longest: int, *, as_json: bool) -> int:
    """Print the results; exit code 1 if too few answers are exact for a release.

    model: a folder, a hub id, demo-logs or demo-chat.
    """
    if longest > LONGEST:
        raise ConfigError(f"longest: a prompt has at most {LONGEST} tokens, got {longest}")
    folder = resolve_model(model, chat=True)
    with reporting(Console(stderr=True)) as report:
        result = evaluate_logs(folder, questions, seed, longest, lambda done: report("questions", done, questions))
    if as_json:
        print(json.dumps(_as_json(result), indent=2))
    else:
        _show(result)
    return 0 if result.share >= NEEDED else 1


def draw_logs_command(out: Path, source: LongLogs, conversations: int, seed: int, *, as_json: bool = False) -> None:
    """Write a file of conversations and print how to train on it; ConfigError for sizes that no log can have."""
    source.check()
    with reporting(Console(stderr=True)) as report:
        write_long_logs(out, source, conversations, seed, lambda done: report("conversations", done, conversations))
    rules, size = source.rules, out.stat().st_size
    if as_json:
        sizes = {"sink": rules.sink, "window": rules.window, "segment": rules.segment}
        print(json.dumps({"conversations": conversations, "bytes": size, **sizes, "positions": "local"}, indent=2))
        return
    fit = f"--sink {rules.sink} --window {rules.window} --segment {rules.segment} --positions local"
    print(f"{out}: {conversations} conversation{'' if conversations == 1 else 's'}, {size / 1e6:.1f} MB")
    print(f"train on it with: edgeflow train-gate demo-logs --data {shlex.quote(str(out))} --out FOLDER {fit}")


def _as_json(result: LogReport) -> dict[str, object]:
    return {
        "questions": len(result.graded),
        "exact": result.share,
        "summary": _counted(result.summary(asked=True)),
        "look-up": _counted(result.summary(asked=False)),
        "cells": [
            {"kind": kind, "evidence": place, **_counted(count)} for (kind, place), count in result.cells().items()
        ],
    }


def _counted(count: ExactCount) -> dict[str, int]:
    return {"right": count.right, "asked": count.asked}


def _show(result: LogReport) -> None:
    table = FoldingTable(
        "kind", *EvidencePlace, title="held-out questions about logs, exact of asked, by place of the evidence"
    )
    cells = result.cells()
    for kind in KINDS:
        table.add_row(kind, *(_text(cells.get((kind, place), ExactCount())) for place in EvidencePlace))
    table_console().print(table)
    for name, asked in (("summary", True), ("look-up", False)):
        print(f"{name} questions: {_text(result.summary(asked=asked))}")
    right = sum(each.right for each in result.graded)
    print(f"{right} of {len(result.graded)} answers exact ({result.share:.1%}); a release needs {NEEDED:.0%}")


def _text(count: ExactCount) -> str:
    return f"{count.right} of {count.asked}" if count.asked else ""
