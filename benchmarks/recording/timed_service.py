"""A service that says at its end how much processor time an observer of its sessions took.

    python -m benchmarks.recording.timed_service FILE OBSERVER python -m edgeflow.cli serve ...

OBSERVER is `recording` or `watch`. FILE gets the nanoseconds by method, as JSON; calls within a call are part of it.
Measuring a call takes about half a microsecond.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from pathlib import Path
from time import thread_time_ns
from typing import Any

from edgeflow.cli import main
from edgeflow.service.children.watching import PageWatch
from edgeflow.service.sessions.recording import SessionRecorder
from edgeflow.service.sessions.watching import SessionWatch

MODULE = "edgeflow.cli"
CALLS = ("opened", "observed", "answered", "notified", "closed")
OBSERVERS: dict[str, tuple[tuple[type[Any], tuple[str, ...]], ...]] = {
    "recording": ((SessionRecorder, (*CALLS, "write")),),
    "watch": ((SessionWatch, CALLS), (PageWatch, ("take", "_step"))),
}
"""Classes, with the methods that do their work."""


class ObserverTime:
    """Adds up the processor time of an observer's calls."""

    def __init__(self) -> None:
        self.spent_ns = Counter[str]()
        """By method."""
        self._inside = False

    def measure(self, kind: type[Any], name: str) -> None:
        """Measure a method of a class from now on."""
        method = getattr(kind, name)

        @functools.wraps(method)
        def measured(*given: Any) -> Any:
            if self._inside:
                return method(*given)
            self._inside, begun_ns = True, thread_time_ns()
            try:
                return method(*given)
            finally:
                self.spent_ns[name] += thread_time_ns() - begun_ns
                self._inside = False

        setattr(kind, name, measured)


def run() -> None:
    """Serve, then write the time."""
    total, file = ObserverTime(), Path(sys.argv[1])
    for kind, calls in OBSERVERS[sys.argv[2]]:
        for name in calls:
            total.measure(kind, name)
    sys.argv = [MODULE, *sys.argv[sys.argv.index(MODULE) + 1 :]]
    try:
        main()
    finally:
        file.write_text(json.dumps(total.spent_ns))


if __name__ == "__main__":
    run()
