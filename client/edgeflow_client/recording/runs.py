"""The names of a recording's files, and the runs that they make up in a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

_TIME = "%Y%m%dT%H%M%S"
_NAME = re.compile(r"edgeflow-(?P<start>\d{8}T\d{6})-(?P<run>[0-9a-f]{8})-(?P<counter>\d{4,9})\.mcap", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The files of a run of a service or a robot."""

    name: str
    """8 hexadecimal digits."""
    files: tuple[Path, ...]
    """In order; the oldest ones may be deleted already."""
    start: datetime
    """Start of the first file, UTC."""
    end: datetime
    """Last change of the last file, UTC."""
    size_bytes: int
    """Size of all its files."""


def file_name(run: str, counter: int) -> str:
    """The name of a file that begins now."""
    return f"edgeflow-{datetime.now(timezone.utc).strftime(_TIME)}-{run}-{counter:04}.mcap"


def recorded_files(folder: Path) -> list[Path]:
    """The files of all runs in a folder, the oldest first, as far as their names say."""
    named = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda pair: (pair[0]["start"], int(pair[0]["counter"])))]


def runs(folder: Path) -> list[RecordedRun]:
    """The runs in a folder, the one that was written last at the end. OSError if it cannot be read."""
    files: dict[str, list[tuple[int, str, Path]]] = {}
    for path in recorded_files(folder):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_file():
            files.setdefault(match["run"], []).append((int(match["counter"]), match["start"], path))
    found = [_run(name, sorted(numbered)) for name, numbered in files.items()]
    return sorted(found, key=lambda run: (run.end, run.start))


def _run(name: str, numbered: list[tuple[int, str, Path]]) -> RecordedRun:
    statuses = [path.stat() for *_, path in numbered]
    try:
        start = datetime.strptime(numbered[0][1], _TIME).replace(tzinfo=timezone.utc)
    except ValueError:  # digits, and no date
        start = datetime.fromtimestamp(statuses[0].st_mtime, timezone.utc)
    return RecordedRun(
        name=name,
        files=tuple(path for *_, path in numbered),
        start=start,
        end=datetime.fromtimestamp(statuses[-1].st_mtime, timezone.utc),
        size_bytes=sum(status.st_size for status in statuses),
    )
