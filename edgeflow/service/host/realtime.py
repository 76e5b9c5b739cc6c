"""CPUs, priorities and locked memory of control and worker. What is not permitted becomes a warning."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_MCL_CURRENT, _MCL_FUTURE = 1, 2


def settle(who: str, pid: int, cpus: Sequence[int], priority: int) -> list[str]:
    """Set the CPUs and the priority of a process; returns one warning for each that could not be set.

    All present threads get them, and later ones inherit them. pid: 0 = the calling thread. priority: 0 = unchanged, -20
    to -1 a nice level, 1 to 99 SCHED_FIFO.
    """
    warnings: list[str] = []
    if cpus:
        warnings += _try(f"realtime.{who}_cpus {list(cpus)}", pid, lambda thread: os.sched_setaffinity(thread, cpus))
    if priority > 0:
        fifo = os.sched_param(priority)
        what = f"realtime.{who}_priority {priority} (SCHED_FIFO)"
        warnings += _try(what, pid, lambda thread: os.sched_setscheduler(thread, os.SCHED_FIFO, fifo))
    elif priority < 0:
        what = f"realtime.{who}_priority {priority} (nice)"
        warnings += _try(what, pid, lambda thread: os.setpriority(os.PRIO_PROCESS, thread, priority))
    return warnings


def lock_memory() -> list[str]:
    """Lock all present and future pages of this process in memory."""
    return _try("realtime.lock_memory", 0, _lock_all)


def _lock_all(_: int) -> None:
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _try(what: str, pid: int, change: Callable[[int], object]) -> list[str]:
    if sys.platform != "linux":
        return [f"{what}: only on Linux"]
    try:
        for thread in [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()] if pid else [0]:
            change(thread)
    except OSError as error:
        reason = "not permitted" if error.errno == errno.EPERM else error.strerror
        return [f"{what}: {reason}"]
    return []
