"""Runs `edgeflow serve` in this process with observers of its sessions that the product does not have.

    python -m benchmarks.chaos.observed_service [--accepted FILE] [--leak-bytes N] -- serve ...

--accepted: write the frames that sessions accepted, as JSON, when the process ends. --leak-bytes: leak this many bytes
per frame.
"""

from __future__ import annotations

import argparse
import atexit
import json
import sys
from collections import defaultdict
from pathlib import Path

from edgeflow import cli
from edgeflow.service.sessions.observers import ObservedFrame, SessionObserver


class Accepted(SessionObserver):
    """The numbers of frames in order with valid contents, by session."""

    def __init__(self) -> None:
        self.frames: dict[int, list[int]] = defaultdict(list)

    def observed(self, frame: ObservedFrame) -> None:
        self.frames[frame.session].append(frame.frame.seq)


class Leak(SessionObserver):
    """Keeps some bytes of every frame."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left: list[bytes] = []

    def observed(self, frame: ObservedFrame) -> None:  # noqa: ARG002 - an observer's
        self._left.append(bytes(self._size))


def main() -> None:
    """Serve with the observers that the options name."""
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accepted", type=Path)
    parser.add_argument("--leak-bytes", type=int, default=0)
    arguments = parser.parse_args(sys.argv[1:at])
    observers: list[SessionObserver] = []
    if arguments.accepted:
        accepted, path = Accepted(), arguments.accepted
        observers.append(accepted)
        atexit.register(lambda: path.write_text(json.dumps(accepted.frames)))
    if arguments.leak_bytes:
        observers.append(Leak(arguments.leak_bytes))
    sys.argv = ["edgeflow", *sys.argv[at + 1 :]]
    cli.main(observers)


if __name__ == "__main__":
    main()
