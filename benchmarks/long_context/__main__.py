"""Long logs on small memory: what of a prompt is kept, at equal bytes, and how many questions are answered then.

All pairs (up to the length that the base was trained on); sink and window; selected pairs in the manner of SnapKV; and
EdgeInfinite with a trained gate, with one that was not trained, without sink, and with a window of one token, which is
the least. Every row but the first and the last two keeps as many bytes as EdgeInfinite's slot with its memory.
Questions are of three kinds (was it ever, what was it most often, look-ups of one line) and in two places: in what all
of them compress or drop, and in what all of them keep.

    .venv/bin/python -m benchmarks.long_context --json FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.command import keep, machine_facts, options
from benchmarks.long_context.cells import (
    Band,
    PromptLayout,
    QuestionCell,
    Where,
    cells_of,
    draw_questions,
    opening_tokens,
    question_tokens,
)
from benchmarks.long_context.report import (
    Score,
    ScoreGain,
    SystemScores,
    cost_table,
    evidence_table,
    exact_table,
    gain,
)
from benchmarks.long_context.snapkv import SnapKV
from benchmarks.long_context.systems import ANSWER, ServedModel, position_bytes
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.trainer import initial_gate
from edgeflow.model_paths import EMBEDDED_LOG_MODEL
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import GateRules, MemoryGate, base_fingerprint, gate_header
from edgeflow_client.errors import StartError
from edgeflow_client.loadtest.terminal import table_console

CPU = torch.device("cpu")
FULL, WINDOW, SNAPKV = "full attention", "sink + window", "SnapKV-style"
TRAINED, UNTRAINED = "EdgeInfinite", "EdgeInfinite, untrained"
NO_SINK, NO_WINDOW = "EdgeInfinite, no sink", "EdgeInfinite, window 1"

DEFAULT_BANDS = ((1000, 2030), (2500, 4000))


@dataclass(frozen=True, slots=True)
class ComparedSystems:
    """The model and the systems that are compared, with the questions that they are asked."""

    model: ChatModel
    rules: GateRules
    systems: dict[str, ServedModel | SnapKV]
    layout: PromptLayout
    cells: list[QuestionCell]

    @classmethod
    def read(cls, base: Path, gate: Path, bands: Sequence[Band]) -> ComparedSystems:
        """From the directories of a base and its gate; StartError for a gate of another base, and for bands that hold
        no questions."""
        known_by = base_fingerprint(base)
        model = load_chat_model(base, torch.float32, CPU)
        trained = gate_header(gate, model.config, base_fingerprint=known_by).read(model.config, torch.float32, CPU)
        systems = _systems(model, PlainBase.read(base, torch.float32, CPU), trained, bands)
        layout = _layout(model, trained.rules, systems[TRAINED].slot_bytes)
        for band in bands:
            layout.check(band)
        return cls(model, trained.rules, systems, layout, cells_of(bands))


def main() -> None:
    """Measure and print; exit code 1 when the trained gate is not enough better than sink and window."""
    parser = _parser()
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    try:
        bands = [Band(*each) for each in arguments.band or DEFAULT_BANDS]
        subject = ComparedSystems.read(arguments.base, arguments.gate, bands)
    except StartError as error:
        parser.error(str(error))
    rows = [SystemScores(name, system.slot_bytes, {}) for name, system in subject.systems.items()]
    for cell in subject.cells:
        _ask(subject, rows, cell, arguments)
    gains = list(_gains(rows, subject.cells))
    _show(rows, subject.cells, gains)
    _keep(arguments, subject, rows, gains)
    raise SystemExit(not all(each.met for _, each in gains))


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument(
        "--base", type=Path, default=EMBEDDED_LOG_MODEL, help="checkpoint directory that answers questions about logs"
    )
    parser.add_argument("--gate", type=Path, default=EMBEDDED_LOG_MODEL, help="directory of its trained gate")
    parser.add_argument("--questions", type=_count, default=500, help="summaries in the compressed part")
    parser.add_argument("--look-ups", type=_count, default=400, help="look-ups in the compressed part")
    parser.add_argument("--kept", type=_count, default=20, help="questions of each cell in the kept part")
    parser.add_argument(
        "--band",
        type=int,
        nargs=2,
        action="append",
        metavar=("SHORTEST", "LONGEST"),
        help="tokens of a prompt; repeat for several bands (default: 1000 2030 and 2500 4000)",
    )
    parser.add_argument("--seed", default="0", help="of the questions")
    parser.add_argument("--threads", type=_count, default=1)
    return parser


def _count(text: str) -> int:
    """A number of the command line, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _systems(
    model: ChatModel, base: PlainBase, gate: MemoryGate, bands: Sequence[Band]
) -> dict[str, ServedModel | SnapKV]:
    rules, longest = gate.rules, max(band.longest for band in bands) + ANSWER
    trained = ServedModel(model, longest, gate=gate)
    places = trained.slot_bytes // position_bytes(model)
    window = ServedModel(model, places, sink=rules.sink)
    return {
        FULL: ServedModel(model, min(longest, model.config.max_position_embeddings)),
        WINDOW: window,
        SNAPKV: SnapKV(model, base, places, rules.sink, rules.window, window.slot_bytes),
        TRAINED: trained,
        UNTRAINED: ServedModel(model, longest, gate=initial_gate(model.config, rules, 0)),
        NO_SINK: ServedModel(model, longest, gate=replace(gate, rules=replace(rules, sink=0))),
        NO_WINDOW: ServedModel(model, longest, gate=replace(gate, rules=replace(rules, window=1))),
    }


def _layout(model: ChatModel, rules: GateRules, slot_bytes: int) -> PromptLayout:
    return PromptLayout(
        sink=rules.sink,
        out_of_reach=slot_bytes // position_bytes(model) - rules.sink,
        window=rules.window,
        opening=opening_tokens(model),
        question=question_tokens(model),
    )


def _ask(
    subject: ComparedSystems, rows: Sequence[SystemScores], cell: QuestionCell, arguments: argparse.Namespace
) -> None:
    """Ask all systems the questions of a cell; those that read all at once only up to the trained length."""
    model, systems = subject.model, subject.systems
    within = cell.band.longest <= model.config.max_position_embeddings
    asked = [row for row in rows if within or row.name not in (FULL, SNAPKV)]
    for row in asked:
        row.scores[cell] = Score()
    count = arguments.kept if cell.where is Where.KEPT else arguments.questions if cell.summary else arguments.look_ups
    questions = draw_questions(model, cell, subject.layout, count, arguments.seed)
    for question in track(questions, description=f"{cell.name}, {cell.band.name}", total=count):
        for row in asked:
            row.scores[cell].add(question, systems[row.name].answer(question.ids))


def _gains(rows: Sequence[SystemScores], cells: Sequence[QuestionCell]) -> Iterator[tuple[QuestionCell, ScoreGain]]:
    by_name = {row.name: row.scores for row in rows}
    for cell in cells:
        if cell.is_decisive:
            yield cell, gain(by_name[TRAINED][cell], by_name[WINDOW][cell])


def _show(
    rows: Sequence[SystemScores], cells: Sequence[QuestionCell], gains: Sequence[tuple[QuestionCell, ScoreGain]]
) -> None:
    """Print the tables of each band, and what the trained gate gains."""
    console = table_console()
    for cell, found in gains:
        for table in (exact_table(rows, cell.band, cells), evidence_table(rows, cell), cost_table(rows, cell.band)):
            console.print(table)
        print(f"{cell.name}, {cell.band.name}: {found.points:+.1%} of {TRAINED} over {WINDOW}, apart: {found.apart}\n")


def _keep(
    arguments: argparse.Namespace,
    subject: ComparedSystems,
    rows: Sequence[SystemScores],
    gains: Sequence[tuple[QuestionCell, ScoreGain]],
) -> None:
    """Write the files that were asked for."""
    asked = {"seed": arguments.seed, "threads": arguments.threads, "rules": subject.rules.to_json()}
    measured_gains = [
        {"cell": cell.name, "band": cell.band.name, "points": each.points, "met": each.met} for cell, each in gains
    ]
    keep(arguments.json, {**machine_facts(), **asked, "rows": [row.to_json() for row in rows], "gains": measured_gains})


if __name__ == "__main__":
    main()
