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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chaos.process_facts import alive, children, command, wait_for
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from benchmarks.command import keep, machine_facts, options
from benchmarks.recording.overhead import ROBOTS, load_words
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import RecordedObservation

FAULT_S, RUN_S, END_S = 8.0, 16.0, 10.0
MOST_LOST_S = 1.0
TMPFS_MB = 1024 + 24  # beyond what a recording leaves free
SLOW_BYTES = 1e6
RECORDER = "edgeflow_client.recording.process"


@contextmanager
def _ordinary_disk() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="edgeflow-recording-") as folder:
        yield (path := Path(folder) / "recordings"), path


@contextmanager
def _full_disk() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="edgeflow-full-") as mount:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m", "none", mount], check=True)
        try:
            yield (path := Path(mount) / "recordings"), path
        finally:
            subprocess.run(["umount", "-l", mount], check=False)


@contextmanager
def _slow_disk() -> Iterator[tuple[Path, Path]]:
    from benchmarks.recording.slow_disk import slow_disk  # needs mfusepy

    with tempfile.TemporaryDirectory(prefix="edgeflow-slow-") as folder:
        under, mount = Path(folder) / "disk", Path(folder) / "mount"
        under.mkdir()
        mount.mkdir()
        with slow_disk(under, mount, SLOW_BYTES):
            yield mount / "recordings", under / "recordings"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """A fault, FAULT_S after robots began."""

    happens: Callable[[ServiceUnderTest, Path], None] = lambda *_: None
    disk: Callable[[], AbstractContextManager[tuple[Path, Path]]] = _ordinary_disk
    """The folder of the recordings, and where they are read afterwards."""
    must_tell: bool = False
    most_missing_s: float | None = None
    kills: bool = False
    """The service itself."""


def main() -> None:
    """Run every fault; exit code 1 when a robot noticed one, or more was lost than permitted."""
    parser = options(__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"all, or some of {', '.join(FAULTS)}")
    arguments = parser.parse_args()
    found, facts = [], machine_facts()
    for name in arguments.faults or FAULTS:
        outcome = _outcome(name, FAULTS[name])
        found.append(outcome)
        print(json.dumps(outcome), flush=True)
    keep(arguments.json, {**facts, "faults": found, "most_lost_s": MOST_LOST_S})
    raise SystemExit(0 if all(each["ok"] for each in found) else 1)


def _outcome(name: str, fault: _Fault) -> dict[str, Any]:
    """Frames of the robots by outcome, events of the log about the recording, and the facts of `_read`."""
    with fault.disk() as (folder, read), light_policy(ROBOTS) as policy:
        with ServiceUnderTest({**policy, "recording": {"directory": str(folder)}}) as service:
            with _robots(service) as robots:
                time.sleep(FAULT_S)
                recorder, since = _recorder(service), time.time()
                fault.happens(service, folder)
                if fault.kills:
                    wait_for(lambda: not alive(recorder), END_S, 0.02)
            told = [] if fault.kills else _told(service, 0.0 if fault.must_tell else since)
        kept = _read(read, until_ns=round(since * 1e9) if fault.kills else None)
    seen: dict[str, Any] = {}
    unharmed = True  # as far as robots of a killed service can be
    if not fault.kills:
        total = json.loads(robots[0])["total"]
        frames = total["frames"]
        unharmed = not frames["rejected"] and not frames["dropped"] and not frames["unanswered"]
        seen = {"frames": frames, "age_p99_ms": total["age_ms"]["p99"], "fps": total["fps"]}
    missing, most = kept["missing_s"], fault.most_missing_s
    ok = unharmed and (bool(told) or not fault.must_tell)
    ok = ok and (most is None or (missing is not None and missing <= most))
    return {"name": name, "robots": seen, "told": told, **kept, "ok": ok}


def _kill(service: ServiceUnderTest, *, control: bool, recorder: bool) -> None:
    """SIGKILL, of both at the same moment."""
    found = _recorder(service)
    if control:
        service.signal(signal.SIGKILL)
    if recorder:
        os.kill(found, signal.SIGKILL)


@contextmanager
def _robots(service: ServiceUnderTest) -> Iterator[list[str]]:
    """Robots beside the context; their report when it has ended."""
    report: list[str] = []
    with load_words(service.address, RUN_S) as words:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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
    """The recordings of a folder: files, those of them that end in damage, frames, missing numbers of records, and the
    longest time without a frame; with until_ns, the end of the time that they should cover, from the last frame to it.
    """
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


FAULTS: dict[str, _Fault] = {
    "none": _Fault(),
    "recorder killed": _Fault(
        happens=lambda service, _: _kill(service, control=False, recorder=True), most_missing_s=MOST_LOST_S
    ),
    "service killed": _Fault(
        happens=lambda service, _: _kill(service, control=True, recorder=False), most_missing_s=MOST_LOST_S, kills=True
    ),
    "all killed": _Fault(
        happens=lambda service, _: _kill(service, control=True, recorder=True), most_missing_s=MOST_LOST_S, kills=True
    ),
    "disk full": _Fault(disk=_full_disk, must_tell=True),
    "slow disk": _Fault(disk=_slow_disk),
    "directory removed": _Fault(happens=lambda _, folder: shutil.rmtree(folder), must_tell=True),
}

if __name__ == "__main__":
    main()
