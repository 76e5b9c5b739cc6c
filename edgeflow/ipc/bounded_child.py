"""The inside of a process whose work is bounded (ipc/bounded.py): messages on standard streams, and its limits.

A message is a length, then bytes. The kernel ends the process at its limits, also when the one who asked is gone.
"""

from __future__ import annotations

import math
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LENGTH = struct.Struct("<I")
MEMORY_EXIT = 75  # exit code after a MemoryError
NICENESS = 10


def send(stream: BinaryIO, message: bytes) -> None:
    """Write a length, then the bytes."""
    stream.write(LENGTH.pack(len(message)) + message)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """Read one message; None at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def end_without_memory(serve: Callable[[], None]) -> None:
    """Run until the end; an exit code says that memory was lacking."""
    try:
        serve()
    except MemoryError:
        os._exit(MEMORY_EXIT)


def step_back() -> None:
    """Give up the priority of the one who asks, which is for robots."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def limit_memory(more_bytes: int) -> None:
    """Limit address space to what is used now and so many bytes more (where /proc says what is used)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_time(seconds: int) -> None:
    """Limit processor time to what was used so far and so many seconds more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + seconds, hard))
