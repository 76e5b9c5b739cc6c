"""CPUs, priorities and locked memory for front and worker. What is not permitted is told, and the service goes on."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Sequence

_MCL_CURRENT, _MCL_FUTURE = 1, 2


def settle(who: str, pid: int, cpus: Sequence[int], priority: int) -> list[str]:
    """Give a process its CPUs and priority; what could not be done, one line each.

    Threads that it has already keep theirs: call it early. pid: 0 = the calling thread. priority: 0 = as it is,
    -20 to -1 a nice level, 1 to 99 SCHED_FIFO.
    """
    told: list[str] = []
    if cpus:
        told += _try(f"realtime.{who}_cpus {list(cpus)}", lambda: os.sched_setaffinity(pid, cpus))
    if priority > 0:
        fifo = os.sched_param(priority)
        told += _try(
            f"realtime.{who}_priority {priority} (SCHED_FIFO)", lambda: os.sched_setscheduler(pid, os.SCHED_FIFO, fifo)
        )
    elif priority < 0:
        told += _try(
            f"realtime.{who}_priority {priority} (nice)", lambda: os.setpriority(os.PRIO_PROCESS, pid, priority)
        )
    return told


def lock_memory() -> list[str]:
    """Keep every page of this process in memory, those to come included."""
    return _try("realtime.lock_memory", _lock_all)


def _lock_all() -> None:
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _try(what: str, change: Callable[[], object]) -> list[str]:
    if sys.platform != "linux":
        return [f"{what}: only on Linux"]
    try:
        change()
    except OSError as error:
        reason = "not permitted" if error.errno == errno.EPERM else error.strerror
        return [f"{what}: {reason}"]
    return []
