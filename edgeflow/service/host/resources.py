"""Resources of the processes: limits of the shell, CPUs, priorities and locked memory."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeflow_client.errors import StartError

LEAST_ADDRESS_SPACE = 1 << 30
"""On a CPU, control and the worker of the embedded policy map 1.2 GB each."""
LEAST_STACK = 1 << 20
LEAST_DESCRIPTORS = 48
"""With fewer, worker and children cannot be started; with fewer than 24, libraries in C end the process."""
LIMITS = (
    (resource.RLIMIT_AS, "-v", LEAST_ADDRESS_SPACE, 1024, " KiB"),
    (resource.RLIMIT_STACK, "-s", LEAST_STACK, 1024, " KiB"),
    (resource.RLIMIT_NOFILE, "-n", LEAST_DESCRIPTORS, 1, ""),
)
"""Limit, option of `ulimit`, least value, and the unit in which `ulimit` counts."""
_MCL_CURRENT, _MCL_FUTURE = 1, 2


def check_limits() -> None:
    """StartError for resource limits with which the service cannot start. Call it before libraries are loaded."""
    for limit, option, least, each, unit in LIMITS:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and soft < least:
            raise StartError(
                f"ulimit {option} is {soft // each}{unit}, and the service needs at least {least // each}: "
                "raise the limit"
            )


def set_scheduling(who: str, pid: int, cpus: Sequence[int], priority: int) -> list[str]:
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
