"""The implementation of `edgeflow recording compare`: from its options to tables, JSON and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.outputs import check_writable, writing
from edgeflow.lab.progress import reporting
from edgeflow.lab.recordings.compare import ComparedModel, ComparedSession, ComparePlan, ModelComparison, load_models
from edgeflow.lab.recordings.info import open_recording
from edgeflow.lab.recordings.sessions import choose_sessions
from edgeflow.lab.recordings.stream import counted
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.measure import distribution
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable, table_console


def compare_command(
    path: Path, plan: ComparePlan, *, run: str, chosen: Sequence[str], plot: Path | None, as_json: bool
) -> None:
    """Run two models on recorded sessions and print where they part."""
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise ConfigError(f"plot: {plot} is not the name of a PNG file")
        check_writable(plot.absolute().parent)
    recording = open_recording(path, run)
    sessions = choose_sessions(recording, chosen)
    with ExitStack() as stack:
        models = load_models(plan, stack)
        with reporting(Console(stderr=True)) as report:
            compared = ModelComparison(recording, plan, models, report).run(sessions)
        left_out = ""
        if plot is not None and any(each.seconds for each in compared):
            from edgeflow.lab.recordings.drawing import draw_comparison  # needs matplotlib

            with writing(plot):
                left_out = draw_comparison(plot, compared, models[0].schema, plan.models)
        if as_json:
            print(
                json_text(
                    {
                        "models": [_model_json(each) for each in models],
                        "sessions": [_compared_json(each) for each in compared],
                    }
                )
            )
        else:
            _print_comparison(models, compared)
            if left_out:
                print(f"not in the plot: {left_out}")


def _model_json(model: ComparedModel) -> dict[str, Any]:
    latency = distribution(model.latencies_ms)
    return {
        "model": model.name,
        "answers": latency.count,
        "latency_ms": {"p50": latency.p50, "p99": latency.p99},
        "failed": dict(model.failed),
    }


def _compared_json(session: ComparedSession) -> dict[str, Any]:
    recorded = [each.to_json() if each is not None else None for each in session.recorded]
    return {
        "session": session.label,
        "undecodable": session.undecodable,
        "between": session.between.to_json(),
        "to_recorded": recorded,
    }


def _print_comparison(models: Sequence[ComparedModel], compared: Sequence[ComparedSession]) -> None:
    console = table_console()
    table = FoldingTable("model", "answers", "latency p50, p99", "not answered")
    for model in models:
        latency = distribution(model.latencies_ms)
        times = f"{latency.p50:.1f}, {latency.p99:.1f} ms" if latency.count else "none"
        table.add_row(*map(escape, (model.name, str(latency.count), times, counted(model.failed))))
    console.print(table)
    names = ("recorded and " + models[0].name, "recorded and " + models[1].name)
    for session in compared:
        pairs = [("both models", session.between), *zip(names, session.recorded, strict=True)]
        for name, differences in pairs:
            if differences is None or not differences.compared:
                continue
            equal = f"{differences.equal} of {differences.compared} answers equal, {differences.bit_equal} bit-equal"
            console.print(f"session {session.label}, {name}: {equal}", markup=False, highlight=False)
            console.print(differences.table())
        if session.undecodable:
            console.print(f"session {session.label}: {session.undecodable} frames have no usable images")
        if session.between.worst:
            console.print(f"session {session.label}, both models: the frames that part most")
        for worst in session.between.worst:
            console.print(f"  {worst.text}", markup=False, highlight=False)
