"""How a child gives way to robots: priority, memory, and who dies first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

NICE = 5
OOM_SCORE = 1000  # the first to go when the machine is out of memory
_PR_SET_NAME = 15


def be_expendable(*, every_cpu: bool) -> None:
    """Take a low priority, and be the first to be killed without memory.

    Control's real-time policy is given up, under which a nice level means nothing; so are its CPUs with `every_cpu`.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    if every_cpu:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel leaves out those that are not permitted
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def limit_memory(memory_mb: int) -> None:
    """Limit this process's memory, in MiB."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory_mb << 20
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show, at most 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
