"""Faults of a service that records: processes killed, disks full or slow, the directory removed.

    .venv/bin/python -m benchmarks.recording.faults --json FILE

Four robots send 640x480 JPEG images at 30 Hz. Robots must not notice a fault of the disk or of the recorder: no frame
is rejected or dropped. After a kill, the recording must open, and hold all but the last second. Needs root, and
mfusepy for the slow disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chaos.process_facts import alive, children, command, wait_for
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from benchmarks.command import keep, machine_facts, options
from benchmarks.recording.overhead import RATE_HZ, ROBOTS
from benchmarks.recording.slow_disk import slow_disk
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import RecordedObservation

FAULT_S, RUN_S, END_S = 8.0, 16.0, 10.0
MOST_LOST_S = 1.0
TMPFS_MB = 1024 + 24  # beyond what a recording leaves free
SLOW_BYTES = 1e6
RECORDER = "edgeflow_client.recording.process"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingFault:
    """The outcome of a fault."""

    name: str
    robots: dict[str, Any]
    """Frames by outcome, and the age of actions; without them where the service itself was killed."""
    told: list[str]
    """Events of the log about the recording, after the fault."""
    files: int
    damaged: int
    """Files that end in damage; each opens up to it."""
    observations: int
    lost_records: int
    """Numbers that are missing between the first record and the last."""
    missing_s: float | None
    """The longest time without a record of a frame; after a kill of the service, from its last record to the kill."""
    ok: bool


def main() -> None:
    """Run every fault; exit code 1 when a robot noticed one, or more was lost than permitted."""
    parser = options(__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"all, or some of {', '.join(FAULTS)}")
    arguments = parser.parse_args()
    found, facts = [], machine_facts()
    for name in arguments.faults or FAULTS:
        outcome = FAULTS[name](name)
        found.append(outcome)
        print(json.dumps(asdict(outcome)), flush=True)
    keep(arguments.json, {**facts, "faults": [asdict(each) for each in found], "most_lost_s": MOST_LOST_S})
    raise SystemExit(0 if all(each.ok for each in found) else 1)


def _leave(service: ServiceUnderTest, folder: Path) -> None:
    """The fault is there from the start."""


def _nothing(name: str) -> RecordingFault:
    return _beside(name, _leave)


def _recorder_killed(name: str) -> RecordingFault:
    def kill(service: ServiceUnderTest, folder: Path) -> None:  # noqa: ARG001
        os.kill(_recorder(service), signal.SIGKILL)

    return _beside(name, kill, most_missing_s=MOST_LOST_S)


def _directory_removed(name: str) -> RecordingFault:
    def remove(service: ServiceUnderTest, folder: Path) -> None:  # noqa: ARG001
        shutil.rmtree(folder)

    return _beside(name, remove, must_tell=True)


def _disk_full(name: str) -> RecordingFault:
    with tempfile.TemporaryDirectory(prefix="edgeflow-full-") as folder, _tmpfs(Path(folder)):
        return _beside(name, _leave, folder=Path(folder) / "recordings", must_tell=True)


def _slow_disk(name: str) -> RecordingFault:
    with tempfile.TemporaryDirectory(prefix="edgeflow-slow-") as folder:
        under, mount = Path(folder) / "disk", Path(folder) / "mount"
        under.mkdir()
        mount.mkdir()
        with slow_disk(under, mount, SLOW_BYTES):
            return _beside(name, _leave, folder=mount / "recordings", read=under / "recordings")


def _beside(
    name: str,
    fault: Callable[[ServiceUnderTest, Path], None],
    *,
    folder: Path | None = None,
    read: Path | None = None,
    must_tell: bool = False,
    most_missing_s: float | None = None,
) -> RecordingFault:
    """A fault that robots must not notice. read: where the recordings are read afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-recording-") as own, light_policy(ROBOTS) as policy:
        folder = folder or Path(own) / "recordings"
        with ServiceUnderTest({**policy, "recording": {"directory": str(folder)}}) as service:
            with _robots(service) as robots:
                time.sleep(FAULT_S)
                since = time.time()
                fault(service, folder)
            told = _told(service, since if must_tell is False else 0.0)
        kept = _read(read or folder)
    total = json.loads(robots[0])["total"]
    frames = total["frames"]
    unharmed = not frames["rejected"] and not frames["dropped"] and not frames["unanswered"]
    missing = kept["missing_s"]
    return RecordingFault(
        name=name,
        robots={"frames": frames, "age_p99_ms": total["age_ms"]["p99"], "fps": total["fps"]},
        told=told,
        ok=unharmed
        and (bool(told) or not must_tell)
        and (most_missing_s is None or (missing is not None and missing <= most_missing_s)),
        **kept,
    )


def _service_killed(name: str) -> RecordingFault:
    return _killed(name, with_recorder=False)


def _all_killed(name: str) -> RecordingFault:
    return _killed(name, with_recorder=True)


def _killed(name: str, *, with_recorder: bool) -> RecordingFault:
    """SIGKILL of control, and of the recorder at the same moment."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-recording-") as own, light_policy(ROBOTS) as policy:
        folder = Path(own) / "recordings"
        with ServiceUnderTest({**policy, "recording": {"directory": str(folder)}}) as service, _robots(service):
            time.sleep(FAULT_S)
            recorder = _recorder(service)
            killed_ns = time.time_ns()
            service.signal(signal.SIGKILL)
            if with_recorder:
                os.kill(recorder, signal.SIGKILL)
            wait_for(lambda: not alive(recorder), END_S, 0.02)
        kept = _read(folder, until_ns=killed_ns)
    missing = kept["missing_s"]
    return RecordingFault(name=name, robots={}, told=[], ok=missing is not None and missing <= MOST_LOST_S, **kept)


@contextmanager
def _robots(service: ServiceUnderTest) -> Iterator[list[str]]:
    """Robots beside the context; their report when it has ended."""
    words = [sys.executable, "-m", "edgeflow.cli", "loadtest", service.address, "--json", "--robots", f"{ROBOTS}"]
    words += ["--rate", f"{RATE_HZ}", "--duration", f"{RUN_S:g}s", "--camera", "640x480"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    report: list[str] = []
    try:
        yield report
        report.append(process.communicate(timeout=RUN_S + 30)[0] if alive(service.pid) else "")
    finally:
        process.kill()
        process.wait()


def _recorder(service: ServiceUnderTest) -> int:
    return next(pid for pid in children(service.pid) if RECORDER in " ".join(command(pid)))


def _told(service: ServiceUnderTest, since: float) -> list[str]:
    names = ("recording_failing", "recording_recovered", "recording_lost", "recorder_restarted", "recording_deleted")
    return [name for name in names if service.events(name, since)]


def _read(folder: Path, until_ns: int | None = None) -> dict[str, Any]:
    """The recordings of a folder. until_ns: the end of the time that they should cover."""
    paths = sorted(folder.glob("*.mcap")) if folder.is_dir() else []
    if not paths:
        return {"files": 0, "damaged": 0, "observations": 0, "lost_records": 0, "missing_s": None}
    recording = Recording(paths)
    numbers, times = [], []
    for record, images in recording.sessions():
        if isinstance(record, RecordedObservation):
            assert all(map(len, images)), "an image is empty"
            times.append(record.time_ns)
    numbers = [each.number for each in recording.records("/edgeflow/sessions")]
    times.sort()
    gaps = [newer - older for older, newer in pairwise(times)]
    missing_ns = until_ns - times[-1] if until_ns is not None and times else max(gaps, default=None)
    return {
        "files": len(paths),
        "damaged": len({each.file for each in recording.damage}),
        "observations": len(times),
        "lost_records": numbers[-1] - numbers[0] + 1 - len(numbers) if numbers else 0,
        "missing_s": None if missing_ns is None else missing_ns / 1e9,
    }


@contextmanager
def _tmpfs(mount: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m", "none", str(mount)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


FAULTS: dict[str, Callable[[str], RecordingFault]] = {
    "none": _nothing,
    "recorder killed": _recorder_killed,
    "service killed": _service_killed,
    "all killed": _all_killed,
    "disk full": _disk_full,
    "slow disk": _slow_disk,
    "directory removed": _directory_removed,
}

if __name__ == "__main__":
    main()
