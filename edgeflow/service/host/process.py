"""The service as a process: event loop, signals, ready file."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
from pathlib import Path

from edgeflow_client.errors import ConfigError

try:
    import uvloop
except ImportError:
    uvloop = None

KEPT_BYTES = 16 << 20  # freed memory kept for the next frames; blocks larger than half of it are returned at once
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's if it is installed, without its io_uring, a descriptor that sockets do not use."""
    if uvloop is None:
        return asyncio.new_event_loop()
    os.environ.setdefault("UV_USE_IO_URING", "0")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def no_core_dumps() -> None:
    """Disable core dumps, also for children: frames in memory must not reach the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def keep_freed_memory() -> None:
    """Let glibc keep freed memory. Otherwise the pages of every raw frame are returned, and cleared for the next."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    for option, value in (
        (M_MMAP_THRESHOLD, KEPT_BYTES // 2),
        (M_TOP_PAD, KEPT_BYTES // 2),
        (M_TRIM_THRESHOLD, KEPT_BYTES),
    ):
        mallopt(option, value)


def stop_signal() -> asyncio.Event:
    """An event set by the first signal to stop; a second one kills this process and the worker with it.

    SIGHUP is such a signal unless whoever started this process ignored it (nohup). SIGUSR1 and SIGUSR2 have no effect.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        for each in stopping:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    stopping = [each for each in STOPPING if signal.getsignal(each) != signal.SIG_IGN]
    for each in stopping:
        loop.add_signal_handler(each, on_signal)
    for each in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(each, lambda: None)
    return stop


def clear_ready_file(path: Path) -> None:
    """Remove the ready file of an earlier service, which would point robots to its ports."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"ready_file: {path.parent} is not a writable directory")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"ready_file: {path} cannot be replaced: {error.strerror}") from None


def write_ready_file(path: Path, **ports: int) -> None:
    """Write the ready file atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(ports) + "\n")
    partial.replace(path)
