"""Standard error as a pipe that never blocks, so that no writer waits for its reader."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from types import TracebackType

from edgeflow.service.observe.log import CLOSE_S, MOST_TEXT, LineWriter, event_line

STDOUT, STDERR = 1, 2
CHUNK_BYTES = 4096


class Output:
    """A context in which descriptor 2 is a pipe that a thread drains to where standard error went before.

    The interpreter, its libraries in C and the children write to descriptor 2; log and announcements to `lines`, which
    writes to the same place. Unless that is a terminal, each line from descriptor 2 becomes an event `stderr`: a file
    of the log holds JSON only. Where that place is full, closed or not read, text is lost and everybody goes on. At the
    end descriptor 2 is restored, or leads nowhere if a write would fail or wait.
    """

    def __init__(self) -> None:
        self._original = os.dup(STDERR)
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self.lines = LineWriter(self._original)

    def __enter__(self) -> Output:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        _flush()
        os.dup2(writer, STDERR)
        os.close(writer)
        self._pump = threading.Thread(target=self._drain, args=(reader,), name="stderr", daemon=True)
        self._pump.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline_s = time.monotonic() + CLOSE_S
        _flush()
        os.dup2(self._nowhere, STDERR)  # ends the pipe, unless a child still has it
        self._pump.join(CLOSE_S / 2)
        if self.lines.close(max(deadline_s - time.monotonic(), 0.0)) and self._takes_more():
            os.dup2(self._original, STDERR)
            os.close(self._original)
        os.close(self._nowhere)

    def results(self) -> LineWriter:
        """A writer to standard output, for results."""
        _flush()
        return LineWriter(STDOUT)

    def _takes_more(self) -> bool:
        """True if a line written now will probably neither fail nor wait."""
        poll = select.poll()
        poll.register(self._original, select.POLLOUT)
        return not self.lines.broken and [events for _, events in poll.poll(0)] == [select.POLLOUT]

    def _drain(self, reader: int) -> None:
        with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as pipe:
            if self.lines.isatty():
                while data := pipe.read(CHUNK_BYTES):
                    self.lines.pass_on(data)
                return
            rest = b""
            while data := pipe.read(CHUNK_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    self._wrap(line)
                if len(rest) > MOST_TEXT:
                    self._wrap(rest)
                    rest = b""
            self._wrap(rest)

    def _wrap(self, line: bytes) -> None:
        if text := line.decode(errors="backslashreplace").strip()[:MOST_TEXT]:
            self.lines.write(f"{event_line(time.time(), 'stderr', {'text': text})}\n")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
