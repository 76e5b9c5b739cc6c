"""What the service is as a process: its event loop, its signals, its ready file."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from pathlib import Path

from edgeflow.errors import ConfigError


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def no_core_dumps() -> None:
    """Frames are in memory, and must not be on disk after a crash. Children inherit it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def stop_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a second one kills this process, and the worker with it."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    return stop


def clear_ready_file(path: Path) -> None:
    """One of an earlier service would lead robots to its ports."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"ready_file: {path.parent} is not a writable directory")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"ready_file: {path} cannot be replaced: {error.strerror}") from None


def write_ready_file(path: Path, *, grpc: int, http: int) -> None:
    """Appears whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"grpc": grpc, "http": http}) + "\n")
    partial.replace(path)
