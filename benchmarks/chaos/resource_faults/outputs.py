"""Outputs that cannot be written: a full disk, a pipe without a reader, and one that is not read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.resource_faults.killable_service import FaultOptions, KillableService, compared
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import Surroundings

DISK = "size=128k"
WRITE = 4096


@dataclass(frozen=True, slots=True)
class Outlet:
    """A descriptor to write to, and what spoils it."""

    descriptor: int
    spoil: Callable[[], object]


def full_disk(setting: FaultOptions) -> list[BoundedFigure]:
    return _case(setting, "full-disk", disk())


def closed_pipe(setting: FaultOptions) -> list[BoundedFigure]:
    return _case(setting, "closed-pipe", pipe(closed=True))


def blocked_pipe(setting: FaultOptions) -> list[BoundedFigure]:
    """Neither output is read; the last workers are killed after --blocked-s."""
    pause_s = setting.blocked_s / setting.trials
    rows = _case(setting, "blocked-pipe", pipe(closed=False), both=True, pause_s=pause_s)
    return [BoundedFigure("blocked for, at least", setting.blocked_s, "s"), *rows]


def _case(
    setting: FaultOptions, name: str, opened: AbstractContextManager[Outlet], both: bool = False, pause_s: float = 0.0
) -> list[BoundedFigure]:
    with opened as outlet:
        around = Surroundings(errors=outlet.descriptor, output=outlet.descriptor if both else None)
        with KillableService() as healthy, KillableService(around) as faulty:
            outlet.spoil()
            return compared(setting, name, faulty, healthy, lambda: time.sleep(pause_s))


@contextmanager
def disk() -> Iterator[Outlet]:
    """A file on a small disk that is filled, or /dev/full where none can be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", folder], check=False, capture_output=True
        )
        path = Path("/dev/full") if mounted.returncode else Path(folder) / "log"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            yield Outlet(descriptor, lambda: None if mounted.returncode else _fill_disk(Path(folder)))
        finally:
            os.close(descriptor)
            if not mounted.returncode:
                subprocess.run(["umount", "--lazy", folder], check=True)


def _fill_disk(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(WRITE))
    with contextlib.suppress(OSError), (folder / "log").open("ab", buffering=0) as log:
        while log.write(b"\n"):  # the rest of its last page
            pass


@contextmanager
def pipe(closed: bool) -> Iterator[Outlet]:
    """A pipe whose reader goes, or one that is filled and not read."""
    reader, writer = os.pipe()
    try:
        yield Outlet(writer, lambda: os.close(reader) if closed else _fill_pipe(writer))
    finally:
        os.close(writer)
        if not closed:
            os.close(reader)


def _fill_pipe(writer: int) -> None:
    """Write until not one more byte fits."""
    os.set_blocking(writer, False)
    for size in (WRITE, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(size))
    os.set_blocking(writer, True)
