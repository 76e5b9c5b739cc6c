"""Work of unknown cost in a separate process, which is killed when an answer takes too long: both sides.

Clients' schemas and models' chat templates are compiled there, so that the caller's memory and interpreter are not at
risk. A message is a length, then bytes. The kernel ends the process at its limits, even if the caller is gone.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

LENGTH = struct.Struct("<I")
MEMORY_EXIT = 75  # exit code after a MemoryError
NICENESS = 10


def serve(start: Callable[[bytes], tuple[bytes, Callable[[bytes], bytes] | None]]) -> None:
    """Run a bounded process: answer messages on the standard streams until they end or memory runs out.

    start: answers the first message, and returns the function that answers the others, or None to end. The process
    drops the priority inherited from its caller, which is meant for robots. MEMORY_EXIT reports a MemoryError.
    """
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        message, answer = _receive(), None
        while message is not None:
            reply, answer = start(message) if answer is None else (answer(message), answer)
            sys.stdout.buffer.write(LENGTH.pack(len(reply)) + reply)
            sys.stdout.buffer.flush()
            message = None if answer is None else _receive()
    except MemoryError:
        os._exit(MEMORY_EXIT)


def _receive() -> bytes | None:
    head = sys.stdin.buffer.read(LENGTH.size)
    return sys.stdin.buffer.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def limit_memory(more_bytes: int) -> None:
    """Limit the address space to its present size plus `more_bytes` (where /proc reports it)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_time(seconds: int) -> None:
    """Limit processor time to the time used so far plus `seconds`."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + seconds, hard))


STOPPED_S = 0.5  # between looks at a process that does not answer
LAST_WORDS_S = 2.0  # from the end of the pipe to the end of the process
OUT_OF_MEMORY = (MEMORY_EXIT, -signal.SIGABRT, -signal.SIGSEGV)


class BoundedProcess:
    """A process that runs `main` of a module. It ends with `end`, or when this object is collected."""

    def __init__(self, module: str) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        self._ended = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def exchange(self, message: bytes, limit_s: float, most_bytes: int) -> bytes:
        """Write a message and read its answer of at most `most_bytes`.

        TimeoutError after the limit, ConnectionAbortedError if a signal has stopped the process, another OSError if it
        is gone.
        """
        return _Exchange(self._process, time.monotonic() + limit_s).run(message, most_bytes)

    def end(self, patience_s: float = 0.0) -> int:
        """Wait for its end, kill it after `patience_s`; returns its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)  # its end of the pipe closes before it can be waited for
        self._ended()
        return self._process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError), process:  # unwritten input is lost
        process.kill()


class _Exchange:
    """One message and its answer, within a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        self._pid = process.pid
        self._writer = cast("IO[bytes]", process.stdin).fileno()
        self._reader = cast("IO[bytes]", process.stdout).fileno()
        self._deadline_s = deadline_s
        os.set_blocking(self._writer, False)

    def run(self, message: bytes, most_bytes: int) -> bytes:
        rest = memoryview(LENGTH.pack(len(message)) + message)
        while rest:
            self._wait(self._writer, select.POLLOUT)
            rest = rest[os.write(self._writer, rest[: select.PIPE_BUF]) :]  # a writable pipe takes this many
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        if size > most_bytes:
            raise ConnectionError
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self._reader, select.POLLIN)
            part = os.read(self._reader, size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return bytes(data)

    def _wait(self, descriptor: int, event: int) -> None:
        """Wait until a descriptor is ready; check every STOPPED_S if the process is stopped."""
        poll = select.poll()
        poll.register(descriptor, event)
        while not poll.poll(math.ceil(1000 * min(STOPPED_S, self._left_s()))):
            if self._left_s() == 0:
                raise TimeoutError
            if is_stopped(self._pid):
                raise ConnectionAbortedError

    def _left_s(self) -> float:
        return max(self._deadline_s - time.monotonic(), 0.0)


def is_stopped(pid: int) -> bool:
    """True if a signal has stopped the process (where /proc reports it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
