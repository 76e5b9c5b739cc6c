"""Child processes started with posix_spawn, which needs no descriptor, no copy of memory and no thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

STDIN, STDOUT, STDERR = 0, 1, 2
MOST_DESCRIPTORS = 1 << 16
LEAST_POLL_S, MOST_POLL_S = 0.002, 0.05
ORPHANS_S = 1.0
UNKNOWN_END = "an unknown end"

_starting = threading.Lock()
_started: set[int] = set()
"""Children of `spawn` that are not reaped yet."""


class SpawnedProcess:
    """A child process. If it is bound to its parent (ipc/parent_death.py), it dies with the thread that started it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: str | None = None

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        if self._ended is None:
            self._ended = self._reap()
        return self._ended

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.ended is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        return await until_ended(self, timeout_s)

    def _reap(self) -> str | None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.pid, None
        if pid == 0:
            return None
        _started.discard(self.pid)
        return UNKNOWN_END if status is None else how_it_ended(status)


class ChildProcess(Protocol):
    """A child process."""

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        ...

    def kill(self) -> None: ...

    async def wait(self, timeout_s: float) -> str | None:
        """Wait for its end; returns how it ended, or None if it still runs after the timeout."""
        ...


async def until_ended(process: ChildProcess, timeout_s: float) -> str | None:
    """Wait for the end of a process; returns how it ended, or None if it still runs after the timeout."""
    began_s = time.monotonic()
    while process.ended is None and (waited_s := time.monotonic() - began_s) < timeout_s:
        await asyncio.sleep(min(max(waited_s / 4, LEAST_POLL_S), MOST_POLL_S, timeout_s - waited_s))
    return process.ended


def how_it_ended(status: int) -> str:
    """The status from `os.waitpid` in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"


def spawn(
    entry: str,
    descriptors: Sequence[int],
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> SpawnedProcess:
    """Start `run` of a module as a process in a new session; OSError if that is impossible.

    It inherits `descriptors` under the same numbers, has no standard input, and writes standard output to standard
    error. environment: None = that of this process.
    """
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, STDIN, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, STDERR, STDOUT),
        *((os.POSIX_SPAWN_DUP2, each, each) for each in descriptors),  # onto itself: this clears close-on-exec
    ]
    with _starting:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _code(entry, descriptors), *arguments],
            dict(os.environ if environment is None else environment),
            file_actions=actions,
            setsid=True,  # control handles signals to its process group, such as Ctrl-C
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # this interpreter ignores them, which a child would inherit
        )
        _started.add(pid)
    return SpawnedProcess(pid)


async def reaping_orphans() -> None:
    """Reap ended processes that `spawn` did not start, until cancelled: number 1 of a container inherits them."""
    while True:
        with _starting, contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in _started:
                    break  # whoever started it reaps it, and wants to know how it ended
                os.waitpid(ended.si_pid, os.WNOHANG)
        await asyncio.sleep(ORPHANS_S)


def _signal_name(number: int) -> str:
    """The name of a signal; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _code(entry: str, descriptors: Sequence[int]) -> str:
    """The code of the child, which imports from the same paths; `-m` would search the current directory first.

    It closes all other descriptors: those that this process inherited, or that a library left inheritable.
    """
    kept = [STDERR, *sorted(descriptors), MOST_DESCRIPTORS]
    close = "".join(f"os.closerange({low + 1}, {high}); " for low, high in pairwise(kept))
    return f"import os, sys; {close}sys.path[:] = {sys.path!r}; from {entry} import run; run()"
