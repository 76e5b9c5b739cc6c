"""The implementation of `edgeflow recording`: from the commands' options to their output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.progress import reporting
from edgeflow.lab.recordings.info import open_recording, summarise_recording
from edgeflow.lab.recordings.replay import ReplayedSession, ReplayPlan, SessionReplay, reasons_to_differ
from edgeflow.lab.recordings.sessions import choose_sessions
from edgeflow.lab.recordings.stream import counted
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.measure import distribution
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

FULL, RECORDED = "full", "recorded"
SLOWEST, FASTEST = 0.1, 100.0


def info_command(path: Path, run: str, as_json: bool) -> None:
    """Print the summary of a recording."""
    summary = summarise_recording(open_recording(path, run), path if path.is_dir() else None)
    if as_json:
        print(json_text(summary.to_json()))
    else:
        console = table_console()
        for table in summary.tables():
            console.print(table)


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
    damage = [f"{each.file.name} is read up to byte {each.offset}: {each.text}" for each in recording.damage]
    if as_json:
        rows = [_replayed_json(each) for each in replayed]
        print(json_text({"to": plan.address, "sessions": rows, "may_differ": reasons, "damage": damage}))
    else:
        _print_replay(plan, replayed, reasons, damage)
    return 1 if any(each.parted or each.error for each in replayed) else 0


def exact_command(path: Path, run: str, model: str | None, as_json: bool) -> int:
    """Run the recorded passes again and print the report; 1 unless every answer agrees."""
    from edgeflow.lab.recordings.exact import replay_exactly  # loads torch

    with reporting(Console(stderr=True)) as report:
        found = replay_exactly(open_recording(path, run), model, report)
    if as_json:
        print(json_text(found.as_json()))
    else:
        for line in found.lines():
            table_console().print(line, markup=False, highlight=False)
    return 0 if found.agrees else 1


def _replayed_json(session: ReplayedSession) -> dict[str, Any]:
    recorded, server, trip = (
        distribution([each / 1e6 for each in times])
        for times in (session.recorded_ns, session.server_ns, session.round_trip_ns)
    )
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
        "latency_ms": {"p50": server.p50, "p99": server.p99},
        "latency_recorded_ms": {"p50": recorded.p50, "p99": recorded.p99},
        "round_trip_ms": {"p50": trip.p50, "p99": trip.p99},
        "sent_late_ms": session.late_ns / 1e6,
        "error": str(session.error) if session.error is not None else None,
    }


def _print_replay(
    plan: ReplayPlan, replayed: Sequence[ReplayedSession], reasons: Sequence[str], damage: Sequence[str]
) -> None:
    console = table_console()
    headings = ("session", "frames", "answered in both", "equal", "only recorded", "only here", "latency", "recorded")
    table = FoldingTable(*headings, title=escape(f"replay to {plan.address}"))
    for each in replayed:
        table.add_row(*map(escape, _replayed_row(each)))
    console.print(table)
    for each in replayed:
        if each.parted and each.differences.first is not None:
            first = each.differences.first.text
            console.print(f"session {each.label}: answers part first in {first}; by dimension:", markup=False)
            console.print(each.differences.table())
        if each.error is not None:
            console.print(f"session {each.label} was ended by the service: {each.error}", markup=False)
        if each.without_images or each.stream.unsendable:
            left = each.without_images + each.stream.unsendable
            console.print(f"session {each.label}: {left} frames were not sent: images or numbers are missing")
        if each.stream.reasons or each.stream.holds:
            held = {**each.stream.reasons, **each.stream.holds}
            console.print(f"session {each.label} here: {counted(held)}", markup=False, highlight=False)
    for line in damage:
        console.print(f"damage: {line}", markup=False)
    if reasons and any(each.parted or each.only_recorded or each.only_replayed for each in replayed):
        console.print("Why answers may differ though nothing is wrong:")
        for reason in reasons:
            console.print(f"- {reason}", markup=False, highlight=False)


def _replayed_row(session: ReplayedSession) -> list[str]:
    differences = session.differences
    recorded, server = (
        distribution([each / 1e6 for each in times]) for times in (session.recorded_ns, session.server_ns)
    )
    return [
        session.label,
        f"{session.stream.sent} of {session.frames}",
        str(differences.compared),
        f"{differences.equal}, {differences.bit_equal} bit-equal",
        str(session.only_recorded),
        str(session.only_replayed),
        *(f"{each.p50:.1f}, {each.p99:.1f} ms" if each.count else "none" for each in (server, recorded)),
    ]
