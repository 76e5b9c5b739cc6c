"""The implementation of `edgeflow recording`: from the commands' options to their output."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.outputs import check_writable, writing
from edgeflow.lab.progress import reporting
from edgeflow.lab.recordings.info import summarise_recording
from edgeflow.lab.recordings.replay import ReplayedSession, ReplayPlan, SessionReplay, reasons_to_differ
from edgeflow.lab.recordings.sessions import choose_sessions, counted, milliseconds
from edgeflow_client.errors import ConfigError, InvalidArgument
from edgeflow_client.loadtest.measure import Distribution, distribution
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable, table_console
from edgeflow_client.recording.reader import Recording

if TYPE_CHECKING:
    from edgeflow.lab.recordings.compare import ComparedModel, ComparedSession, ComparePlan
    from edgeflow.lab.recordings.export.run import ExportedDataset

FULL, RECORDED = "full", "recorded"
SLOWEST, FASTEST = 0.1, 100.0


def open_recording(path: Path, run: str) -> Recording:
    """The recording of a file, or of a folder's newest run; InvalidArgument if there is none."""
    if not path.exists():
        raise InvalidArgument(f"{path} does not exist: name a file, or a folder of recordings", field="path")
    return Recording.open(path, run)


def info_command(path: Path, run: str, as_json: bool) -> None:
    """Print the summary of a recording."""
    summary = summarise_recording(open_recording(path, run), path if path.is_dir() else None)
    _show(summary.to_json() if as_json else summary.tables())


def speed_of(text: str) -> float | None:
    """The multiple of the recorded rate that `--rate` names; None = full speed."""
    if text in (FULL, RECORDED):
        return None if text == FULL else 1.0
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not SLOWEST <= speed <= FASTEST:
        raise ConfigError(f"rate: must be recorded, full or a factor from {SLOWEST} to {FASTEST:g}, got {text!r}")
    return speed


def replay_command(path: Path, plan: ReplayPlan, *, run: str, chosen: Sequence[str], as_json: bool) -> int:
    """Replay sessions to a service and print where answers part; 1 if some do, or a session ended early."""
    recording = open_recording(path, run)
    sessions = choose_sessions(recording, chosen)
    with reporting(Console(stderr=True)) as report:
        replayed = asyncio.run(SessionReplay(recording, sessions, plan, report).run())
    reasons = list(reasons_to_differ(plan, replayed, sessions))
    if as_json:
        rows = [_replayed_json(each) for each in replayed]
        _show({"to": plan.address, "sessions": rows, "may_differ": reasons, "damage": _damage(recording)})
    else:
        _show(_replay_lines(plan, replayed, reasons, _damage(recording)))
    return 1 if any(each.parted or each.error for each in replayed) else 0


def exact_command(path: Path, run: str, model: str | None, as_json: bool) -> int:
    """Run the recorded passes again and print the report; 1 unless every answer agrees."""
    from edgeflow.lab.recordings.exact import replay_exactly  # loads torch

    recording = open_recording(path, run)
    with reporting(Console(stderr=True)) as report:
        found = replay_exactly(recording, model, report)
    damage = _damage(recording)
    _show(
        {**found.as_json(), "damage": damage} if as_json else [*found.lines(), *(f"damage: {each}" for each in damage)]
    )
    return 0 if found.agrees else 1


def compare_command(
    path: Path, plan: ComparePlan, *, run: str, chosen: Sequence[str], plot: Path | None, as_json: bool
) -> None:
    """Run two models on recorded sessions and print where they part."""
    from edgeflow.lab.recordings.compare import ModelComparison, load_models  # loads torch

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
            _show({"models": [_model_json(each) for each in models], "sessions": [each.to_json() for each in compared]})
        else:
            _show(_comparison_lines(models, compared, left_out))


def export_command(
    path: Path, run: str, out: Path, *, fps: int | None, video: bool, chosen: Sequence[str], as_json: bool
) -> None:
    """Export sessions of a recording and print what became of each epoch."""
    from edgeflow.lab.recordings.export.run import export_sessions  # needs pyarrow

    recording = open_recording(path, run)
    with reporting(Console(stderr=True)) as report:
        exported = export_sessions(recording, out, fps=fps, video=video, chosen=tuple(chosen), report=report)
    if as_json:
        _show({**dataclasses.asdict(exported), "damage": _damage(recording)})
    else:
        _show(_export_lines(exported, _damage(recording)))


def _show(output: dict[str, Any] | Iterator[FoldingTable | str] | Sequence[str]) -> None:
    """Print JSON, or tables and lines."""
    if isinstance(output, dict):
        print(json_text(output))
        return
    console = table_console()
    for each in output:
        console.print(each, markup=False, highlight=False)


def _damage(recording: Recording) -> list[str]:
    return [f"{each.file.name} is read up to byte {each.offset}: {each.text}" for each in recording.damage]


def _percentiles(latency: Distribution) -> dict[str, float | None]:
    return {"p50": latency.p50, "p99": latency.p99}


def _times(latency: Distribution) -> str:
    return f"{latency.p50:.1f}, {latency.p99:.1f} ms" if latency.count else "none"


def _replayed_json(session: ReplayedSession) -> dict[str, Any]:
    stream, opened = session.stream, session.stream.opened
    return {
        "session": session.label,
        "mode": opened.mode.value if opened is not None else None,
        "model": opened.model if opened is not None else None,
        "frames": session.frames,
        "sent": stream.sent,
        "without_images": session.without_images,
        "unsendable": stream.unsendable,
        "answered_recorded": session.recorded,
        "answered_here": session.replayed,
        "only_recorded": session.only_recorded,
        "only_here": session.only_replayed,
        **session.differences.to_json(),
        "outcomes": dict(stream.outcomes),
        "reasons": dict(stream.reasons),
        "holds": dict(stream.holds),
        "latency_ms": _percentiles(milliseconds(session.server_ns)),
        "latency_recorded_ms": _percentiles(milliseconds(session.recorded_ns)),
        "round_trip_ms": _percentiles(milliseconds(session.round_trip_ns)),
        "sent_late_ms": session.late_ns / 1e6,
        "error": str(session.error) if session.error is not None else None,
    }


def _replay_lines(
    plan: ReplayPlan, replayed: Sequence[ReplayedSession], reasons: Sequence[str], damage: Sequence[str]
) -> Iterator[FoldingTable | str]:
    counts = ("session", "frames", "answered in both", "equal", "only recorded", "only here")
    table = FoldingTable(*counts, "latency p50, p99", "recorded p50, p99", title=escape(f"replay to {plan.address}"))
    for each in replayed:
        row = (
            each.label,
            f"{each.stream.sent} of {each.frames}",
            str(each.differences.compared),
            f"{each.differences.equal}, {each.differences.bit_equal} bit-equal",
            str(each.only_recorded),
            str(each.only_replayed),
            _times(milliseconds(each.server_ns)),
            _times(milliseconds(each.recorded_ns)),
        )
        table.add_row(*map(escape, row))
    yield table
    for each in replayed:
        if each.parted and each.differences.first is not None:
            yield f"session {each.label}: answers part first in {each.differences.first.text}; by dimension:"
            yield each.differences.table()
        if each.error is not None:
            yield f"session {each.label} was ended by the service: {each.error}"
        if left := each.without_images + each.stream.unsendable:
            yield f"session {each.label}: {left} frames were not sent: images or numbers are missing"
        if held := {**each.stream.reasons, **each.stream.holds}:
            yield f"session {each.label} here: {counted(held)}"
    yield from (f"damage: {line}" for line in damage)
    if reasons and any(each.parted or each.only_recorded or each.only_replayed for each in replayed):
        yield "Why answers may differ though nothing is wrong:"
        yield from (f"- {reason}" for reason in reasons)


def _model_json(model: ComparedModel) -> dict[str, Any]:
    latency = distribution(model.latencies_ms)
    return {
        "model": model.name,
        "answers": latency.count,
        "latency_ms": _percentiles(latency),
        "failed": dict(model.failed),
    }


def _comparison_lines(
    models: Sequence[ComparedModel], compared: Sequence[ComparedSession], left_out: str
) -> Iterator[FoldingTable | str]:
    table = FoldingTable("model", "answers", "latency p50, p99", "not answered")
    for model in models:
        latency = distribution(model.latencies_ms)
        table.add_row(*map(escape, (model.name, str(latency.count), _times(latency), counted(model.failed))))
    yield table
    for session in compared:
        yield from _session_lines(session, [f"recorded and {each.name}" for each in models])
    if left_out:
        yield f"not in the plot: {left_out}"


def _session_lines(session: ComparedSession, names: Sequence[str]) -> Iterator[FoldingTable | str]:
    for name, differences in [("both models", session.between), *zip(names, session.recorded, strict=True)]:
        if differences is not None and differences.compared:
            equal = f"{differences.equal} of {differences.compared} answers equal, {differences.bit_equal} bit-equal"
            yield f"session {session.label}, {name}: {equal}"
            if differences.bit_equal < differences.compared:
                yield differences.table()
    if session.undecodable:
        yield f"session {session.label}: {session.undecodable} frames have no usable images"
    if session.between.worst:
        yield f"session {session.label}, both models: the frames that part most"
        yield from (f"  {worst.text}" for worst in session.between.worst)


def _export_lines(exported: ExportedDataset, damage: Sequence[str]) -> Iterator[FoldingTable | str]:
    table = FoldingTable("session", "epoch", "episodes", "frames", "ticks left out", "task")
    for epoch in exported.epochs:
        left_out = ", ".join(f"{reason}: {count}" for reason, count in epoch.left_out.items())
        episodes = ", ".join(map(str, epoch.episodes)) or "none"
        row = (epoch.session, str(epoch.epoch), episodes, str(epoch.frames), left_out or "none", epoch.instruction)
        table.add_row(*map(escape, row))
    yield table
    images = f"{exported.video} videos" if exported.video else "images"
    totals = f"{exported.episodes} episodes with {exported.frames} frames at {exported.fps} per second, {images}"
    yield f"wrote {exported.out}: {totals}"
    if skipped := sum(not epoch.frames for epoch in exported.epochs):
        yield f"skipped {skipped} epochs without an action to an observation"
    yield from (*exported.notices, *(f"damage: {each}" for each in damage))
