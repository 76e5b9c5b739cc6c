"""Runs `edgeflow serve` in this process with probes that the product does not have.

    python -m benchmarks.chaos.launch [--tasks] [--accepted FILE] [--leak-bytes N] -- serve ...

--tasks: /metrics also reports the event loop's tasks and the threads of its pools. --accepted: write the frames that
sessions accepted, as JSON, when the process ends. --leak-bytes: leak this many bytes per frame.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from edgeflow import cli
from edgeflow.service.observe.metrics import Metrics
from edgeflow.service.sessions.runner import SessionRunner

POOLS = ("asyncio_", "uvloop_", "decode")  # of the event loop, whichever it is, and of the decoders


def main() -> None:
    """Install the probes, then serve."""
    own, rest = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument("--accepted", type=Path)
    parser.add_argument("--leak-bytes", type=int, default=0)
    arguments = parser.parse_args(own)
    if arguments.tasks:
        _tell_tasks()
    if arguments.accepted:
        _keep_accepted(arguments.accepted)
    if arguments.leak_bytes:
        _leak(arguments.leak_bytes)
    sys.argv = ["edgeflow", *rest]
    cli.main()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _tell_tasks() -> None:
    text = Metrics.text

    def with_tasks(self: Metrics) -> bytes:
        pool = sum(thread.name.startswith(POOLS) for thread in threading.enumerate())
        return text(self) + f"asyncio_tasks {len(asyncio.all_tasks())}\nasyncio_pool_threads {pool}\n".encode()

    Metrics.text = with_tasks  # type: ignore[method-assign]


def _keep_accepted(path: Path) -> None:
    taken: dict[int, list[int]] = defaultdict(list)
    receive = SessionRunner.receive_frame

    def kept(self: SessionRunner, frame: Any, envelope: Any) -> None:
        taken[self.session.number].append(frame.seq)
        receive(self, frame, envelope)

    SessionRunner.receive_frame = kept  # type: ignore[method-assign]
    atexit.register(lambda: path.write_text(json.dumps(taken)))


def _leak(size: int) -> None:
    left: list[bytes] = []
    receive = SessionRunner.receive_frame

    def leaking(self: SessionRunner, frame: Any, envelope: Any) -> None:
        left.append(bytes(size))
        receive(self, frame, envelope)

    SessionRunner.receive_frame = leaking  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
