"""Long logs on small memory: what of a prompt is kept, at equal bytes, and how many questions are answered then.

All pairs (up to the length that the base was trained on); sink and window; selected pairs in the manner of SnapKV; and
EdgeInfinite with a trained gate, with one that was not trained, without sink and without window. Every row but the
first and the two ablations keeps as many bytes as EdgeInfinite's slot with its memory. Questions are of two kinds
(summaries of many lines, look-ups of one) and in two places: in what all of them compress or drop, and in what all of
them keep.

    .venv/bin/python -m benchmarks.long_context --json FILE --png FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.command import keep, options
from benchmarks.long_context.cells import (
    Band,
    Cell,
    Layout,
    cells_of,
    draw_questions,
    opening_tokens,
    question_tokens,
)
from benchmarks.long_context.report import Gain, Row, Score, gain, picture, table
from benchmarks.long_context.snapkv import SnapKV
from benchmarks.long_context.systems import ANSWER, Served, System, position_bytes
from benchmarks.machine import machine_facts
from edgeflow.console import table_console
from edgeflow.gate_training.initial import initial_gate
from edgeflow.model_paths import EMBEDDED_LOG_MODEL
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate.files import GateRules, MemoryGate, read_gate
from edgeflow.models.memory_gate.plain_base import PlainBase

CPU = torch.device("cpu")
FULL, WINDOW, SNAPKV = "full attention", "sink + window", "SnapKV-style"
TRAINED, UNTRAINED = "EdgeInfinite", "EdgeInfinite, gate untrained"
NO_SINK, NO_WINDOW = "EdgeInfinite, no sink", "EdgeInfinite, no window"


def main() -> None:
    """Measure and print; exit code 1 when the trained gate is not enough better than sink and window."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    model = load_chat_model(arguments.base, torch.float32, CPU)
    gate = read_gate(arguments.gate, model.config, torch.float32, CPU)
    bands = [Band(*each) for each in arguments.band]
    systems = _systems(model, PlainBase.read(arguments.base, torch.float32, CPU), gate, bands)
    rows = [Row(name, system.slot_bytes, {}) for name, system in systems.items()]
    cells = cells_of(bands)
    layout = _layout(model, gate.rules, systems[TRAINED].slot_bytes)
    for cell in cells:
        _ask(model, systems, rows, cell, layout, arguments)
    table_console().print(table(rows, cells))
    gains = list(_gains(rows, cells))
    for cell, found in gains:
        print(f"{cell.name}, {cell.band.name}: {found.points:+.1%} of {TRAINED} over {WINDOW}, apart: {found.apart}")
    asked = {"seed": arguments.seed, "threads": arguments.threads}
    told = [{"cell": cell.name, "band": cell.band.name, "points": each.points, "met": each.met} for cell, each in gains]
    report = {**machine_facts(), **asked, "rules": gate.rules.to_json(), "rows": [row.to_json() for row in rows]}
    keep(arguments.json, {**report, "gains": told})
    if arguments.png is not None:
        picture(arguments.png, rows, cells)
    raise SystemExit(not all(each.met for _, each in gains))


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument(
        "--base", type=Path, default=EMBEDDED_LOG_MODEL, help="checkpoint directory that answers questions about logs"
    )
    parser.add_argument("--gate", type=Path, default=EMBEDDED_LOG_MODEL, help="directory of its trained gate")
    parser.add_argument("--questions", type=int, default=500, help="summaries in the compressed part")
    parser.add_argument("--others", type=int, default=100, help="questions of each other cell")
    parser.add_argument(
        "--band",
        type=int,
        nargs=2,
        action="append",
        metavar=("SHORTEST", "LONGEST"),
        help="tokens of a prompt; repeat for several bands (default: 1000 2030 and 2500 4000)",
    )
    parser.add_argument("--seed", default="0", help="of the questions")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--png", type=Path, help="draw the exact answers here")
    arguments = parser.parse_args()
    arguments.band = arguments.band or [(1000, 2030), (2500, 4000)]
    return arguments


def _systems(model: ChatModel, base: PlainBase, gate: MemoryGate, bands: Sequence[Band]) -> dict[str, System]:
    rules, longest = gate.rules, max(band.longest for band in bands) + ANSWER
    trained = Served(model, longest, gate=gate)
    places = trained.slot_bytes // position_bytes(model)
    window = Served(model, places, sink=rules.sink)
    return {
        FULL: Served(model, min(longest, model.config.max_position_embeddings)),
        WINDOW: window,
        SNAPKV: SnapKV(model, base, places, rules.sink, rules.window, window.slot_bytes),
        TRAINED: trained,
        UNTRAINED: Served(model, longest, gate=initial_gate(model.config, rules, 0)),
        NO_SINK: Served(model, longest, gate=replace(gate, rules=replace(rules, sink=0))),
        NO_WINDOW: Served(model, longest, gate=replace(gate, rules=replace(rules, window=1))),
    }


def _layout(model: ChatModel, rules: GateRules, slot_bytes: int) -> Layout:
    return Layout(
        sink=rules.sink,
        out_of_reach=slot_bytes // position_bytes(model) - rules.sink,
        window=rules.window,
        opening=opening_tokens(model),
        question=question_tokens(model),
    )


def _ask(
    model: ChatModel,
    systems: dict[str, System],
    rows: Sequence[Row],
    cell: Cell,
    layout: Layout,
    arguments: argparse.Namespace,
) -> None:
    """Ask all systems the questions of a cell; those that read all at once only up to the trained length."""
    within = cell.band.longest <= model.config.max_position_embeddings
    asked = [row for row in rows if within or row.name not in (FULL, SNAPKV)]
    for row in asked:
        row.scores[cell] = Score()
    count = arguments.questions if cell.decides else arguments.others
    questions = draw_questions(model, cell, layout, count, arguments.seed)
    for question in track(questions, description=f"{cell.name}, {cell.band.name}", total=count):
        for row in asked:
            row.scores[cell].add(question, systems[row.name].answer(question.ids))


def _gains(rows: Sequence[Row], cells: Sequence[Cell]) -> Iterator[tuple[Cell, Gain]]:
    by_name = {row.name: row.scores for row in rows}
    for cell in cells:
        if cell.decides:
            yield cell, gain(by_name[TRAINED][cell], by_name[WINDOW][cell])


if __name__ == "__main__":
    main()
