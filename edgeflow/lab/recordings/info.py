"""A summary of a recording for people and as JSON: what was recorded, of whom, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from rich.filesize import decimal
from rich.markup import escape

from edgeflow.lab.recordings.sessions import StoredSession, counted, milliseconds, read_sessions
from edgeflow.pass_records import PASS_TOPIC, EngineFacts, EngineRecord
from edgeflow_client.loadtest.terminal import FoldingTable
from edgeflow_client.recording.framing import Damage
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.runs import RecordedRun, runs

CAMERAS = {"all": "every image", "thumbnails": "thumbnails only", "none": "no images"}
"""Recorded parts of images, in words."""
COPIED = ("engine", "opened")
"""Kinds of records of which each file begins with copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSummary:
    """Everything that `edgeflow recording info` says about a run."""

    recording: Recording
    others: tuple[RecordedRun, ...]
    """Other runs in the same folder, the oldest first."""
    sessions: dict[str, StoredSession]
    engines: tuple[EngineFacts, ...]
    """A worker's facts, of each worker that served in turn."""
    passes: int
    """Records of passes; 0 = they were not recorded, and no exact replay is possible."""
    lost: dict[str, int]
    """Lost records by topic."""
    damage: tuple[Damage, ...]

    @property
    def first_ns(self) -> int:
        """Time of the first frame, in nanoseconds since 1970; 0 = there is none."""
        return min((each.first_ns for each in self.sessions.values() if each.frames), default=0)

    @property
    def last_ns(self) -> int:
        """Time of the last frame."""
        return max((each.last_ns for each in self.sessions.values() if each.frames), default=0)

    @property
    def models(self) -> list[str]:
        """The models, by the records of sessions."""
        return sorted({each.opening.model for each in self.sessions.values() if each.opening and each.opening.model})

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {
            "facts": self.recording.facts,
            "files": [{"file": str(path), "bytes": path.stat().st_size} for path in self.recording.paths],
            "other_runs": [
                {"run": each.name, "start": each.start.isoformat(), "bytes": each.size_bytes} for each in self.others
            ],
            "first_frame": moment(self.first_ns),
            "last_frame": moment(self.last_ns),
            "models": self.models,
            "engines": [msgspec.to_builtins(each) for each in self.engines],
            "pass_records": self.passes,
            "lost": self.lost,
            "damage": [{"file": str(each.file), "offset": each.offset, "text": each.text} for each in self.damage],
            "sessions": [_session_json(each) for each in self.sessions.values()],
        }

    def tables(self) -> Iterator[FoldingTable]:
        """The recording, and its sessions."""
        title = f"recording {self.recording.facts.get('run', '')}".rstrip()
        table = FoldingTable("", "", title=escape(title), show_header=False)
        for name, text in self._rows():
            table.add_row(name, escape(text))
        yield table
        if self.sessions:
            yield _sessions_table(list(self.sessions.values()))

    def _rows(self) -> Iterator[tuple[str, str]]:
        facts, paths = self.recording.facts, self.recording.paths
        source = {"service": "a service", "robot": "a robot's SDK"}.get(facts.get("source", ""), "unknown")
        yield "recorded by", f"{source}, edgeflow {facts.get('edgeflow', facts.get('version', 'unknown'))}"
        if self.first_ns:
            yield "frames", f"from {moment(self.first_ns)} on, for {_duration((self.last_ns - self.first_ns) / 1e9)}"
        kept = facts.get("cameras", "")
        yield "cameras", CAMERAS.get(kept, kept or "unknown")
        size = sum(path.stat().st_size for path in paths)
        yield "files", f"{len(paths)} with {decimal(size)}, the newest {paths[-1].name}"
        for each in self.others:
            yield "another run", f"{each.name} of {each.start:%Y-%m-%d %H:%M:%S} UTC, {decimal(each.size_bytes)}"
        for index, engine in enumerate(self.engines):
            yield (
                ("model" if not index else f"model of worker {index + 1}"),
                f"{engine.model} ({engine.family}), fingerprint {engine.fingerprint}",
            )
            yield "exact replay needs", _needs_text(engine)
        if not self.engines and self.models:
            yield "model", ", ".join(self.models)
        if not self.passes:
            yield "passes", "not recorded: it can be replayed by tolerance, not exactly"
        lost = sum(self.lost.values())
        yield "lost records", counted(self.lost) if lost else "none"
        for damaged in self.damage:
            yield "damage", f"{damaged.file.name} is read up to byte {damaged.offset}: {damaged.text}"


def summarise_recording(recording: Recording, folder: Path | None = None) -> RecordingSummary:
    """Read a whole recording. folder: where it was found, if other runs may be there."""
    sessions = read_sessions(recording)
    damage = tuple(recording.damage)
    counts, lost, engines = dict.fromkeys((TOPIC, PASS_TOPIC), 0), dict.fromkeys((TOPIC, PASS_TOPIC), 0), []
    for topic in counts:
        last = -1
        for stored in recording.records(topic):
            kind = _KINDS.decode(stored.data).kind
            counts[topic] += 1
            if last >= 0:
                lost[topic] += max(stored.number - last - 1, 0)
            if last >= 0 or kind not in COPIED:  # nothing is missing before the first file
                last = max(stored.number, last)
            facts = _engine_of(stored.data) if topic == PASS_TOPIC and kind == "engine" else None
            if facts is not None and facts not in engines:
                engines.append(facts)
    found = [] if folder is None else runs(folder)
    others = tuple(each for each in found if not set(each.files) & set(recording.paths))
    return RecordingSummary(
        recording=recording,
        others=others,
        sessions=sessions,
        engines=tuple(engines),
        passes=counts[PASS_TOPIC],
        lost={"sessions": lost[TOPIC], "passes": lost[PASS_TOPIC]},
        damage=damage,
    )


class _CountedKind(msgspec.Struct):
    """The field by which a record is counted."""

    kind: str = ""


_KINDS = msgspec.json.Decoder(_CountedKind)


def _engine_of(data: bytes) -> EngineFacts | None:
    """The facts in a record of an engine; None for those of another version."""
    try:
        return msgspec.json.decode(data, type=EngineRecord).facts
    except msgspec.ValidationError:
        return None


def moment(time_ns: int) -> str:
    """A time since 1970 for people, in UTC; "" for 0, and for one beyond the calendar."""
    try:
        return f"{datetime.fromtimestamp(time_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if time_ns else ""
    except (OverflowError, ValueError, OSError):
        return ""


def _session_json(session: StoredSession) -> dict[str, Any]:
    opening = session.opening
    latency = milliseconds(session.server_ns)
    return {
        "session": session.label,
        "contract": msgspec.to_builtins(opening) if opening is not None else None,
        "closed": msgspec.to_builtins(session.closing) if session.closing is not None else None,
        "first_frame": moment(session.first_ns),
        "seconds": (session.last_ns - session.first_ns) / 1e9,
        "frames": session.frames,
        "frames_with_images": session.frames_with_images,
        "image_bytes": session.image_bytes,
        "answers": session.answers,
        "unknown_answers": session.unknown_answers,
        "rows_executed": session.executed,
        "outcomes": dict(session.outcomes),
        "reasons": dict(session.reasons),
        "holds": dict(session.holds),
        "notices": dict(session.notices),
        "latency_ms": {"p50": latency.p50, "p99": latency.p99},
        "epochs": [
            {
                "epoch": each.number,
                "instruction": each.instruction,
                "frames": each.frames,
                "answers": each.answers,
                "seconds": (each.last_ns - each.first_ns) / 1e9,
            }
            for each in session.epochs
        ],
    }


def _sessions_table(sessions: Sequence[StoredSession]) -> FoldingTable:
    table = FoldingTable("session", "robot", "served", "cameras", "frames", "HOLD, STOP", "latency")
    for session in sessions:
        latency = milliseconds(session.server_ns)
        columns = (
            session.label,
            _robot_text(session),
            _served_text(session),
            _cameras_text(session),
            _frames_text(session),
            counted(session.holds),
            f"p50 {latency.p50:.1f} ms\np99 {latency.p99:.1f} ms" if latency.count else "",
        )
        table.add_row(*map(escape, columns))
    return table


def _robot_text(session: StoredSession) -> str:
    opening = session.opening
    if opening is None:
        return "not opened, or the record of its opening was lost"
    who = [opening.principal or opening.peer, opening.front and f"by {opening.front}"]
    instructions = list(dict.fromkeys(each.instruction for each in session.epochs if each.instruction))
    shown = [f'"{instructions[0][:60]}"'] if instructions else []
    more = [f"and {len(instructions) - 1} more"] if len(instructions) > 1 else []
    return "\n".join(filter(None, [" ".join(filter(None, who)), *shown, *more]))


def _served_text(session: StoredSession) -> str:
    opening = session.opening
    if opening is None:
        return ""
    mode = opening.served_mode or opening.mode
    parts = [mode.value if mode is not None else ""]
    if opening.control_period_ns:
        parts.append(f"{1e9 / opening.control_period_ns:.3g} frames/s")
    if opening.schema is not None:
        parts.append(f"{opening.schema.horizon} x {len(opening.schema.names)} values")
    return "\n".join(filter(None, parts))


def _cameras_text(session: StoredSession) -> str:
    if session.opening is None:
        return ""
    text = "\n".join(f"{each.name} {each.width}x{each.height} {each.format.value}" for each in session.cameras)
    missing = session.frames - session.frames_with_images if session.cameras else 0
    if missing == session.frames and missing:
        return f"{text}\nnot recorded"
    size = f"\n{decimal(session.image_bytes)}" if session.image_bytes else ""
    return f"{text}{size}" + (f"\n{missing} frames without" if missing else "")


def _frames_text(session: StoredSession) -> str:
    episodes = f"{len(session.epochs)} episode{'s' * (len(session.epochs) != 1)}"
    lines = [
        f"{session.frames} in {_duration((session.last_ns - session.first_ns) / 1e9)}, {episodes}",
        f"{session.answers} answered",
        *(f"{count} {reason}" for reason, count in session.reasons.most_common(3)),
    ]
    return "\n".join(lines)


def _needs_text(engine: EngineFacts) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in engine.libraries.items())
    return (
        f"edgeflow {engine.version}; {engine.device}, {engine.machine} with {engine.cpu_capability}, "
        f"{engine.threads} thread{'s' * (engine.threads != 1)}; {engine.dtype}, KV {engine.kv_format}; {libraries}"
    )


def _duration(seconds: float) -> str:
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
