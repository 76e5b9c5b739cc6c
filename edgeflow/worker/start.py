"""Entry of the worker process, started by control with `--fd N --config FILE`.

With `--standby` it is a reserve: it loads its libraries at low priority, and takes over when it receives `Begin`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from edgeflow.contract import PassTimes
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.messages import Begin, StandingBy
from edgeflow.ipc.parent_death import bind_to_parent
from edgeflow.openmp import limit_spinning


def run() -> NoReturn:
    """Run the process from start to exit."""
    parser = argparse.ArgumentParser(description="edgeflow worker process; started by `edgeflow serve`")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to control")
    parser.add_argument("--config", type=Path, required=True, help="the resolved configuration")
    parser.add_argument("--handover", type=int, help="inherited socket over which control sends sockets to chat fronts")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process id of control")
    parser.add_argument("--stacks", type=int, help="inherited pipe for the stacks of threads that hang or crash")
    parser.add_argument("--passes", type=int, help="inherited ring of records, for the passes of a worker that serves")
    parser.add_argument(
        "--pass-times", type=int, nargs=len(fields(PassTimes)), help="pass times measured by an earlier worker"
    )
    parser.add_argument("--standby", action="store_true", help="load the libraries, then wait for Begin from control")
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent, arguments.fd, arguments.stacks)
    limit_spinning(os.environ)
    exit_code = _work(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # on a busy machine, an ordinary exit of torch takes longer than control waits


def _work(arguments: argparse.Namespace) -> int:
    names = [each.name for each in fields(PassTimes)]
    given = arguments.pass_times
    known = PassTimes(**dict(zip(names, given, strict=True))) if given else None
    if arguments.standby:
        try:
            known = stand_by(arguments.fd, _load)
        except ChannelClosed:
            return 0
    from edgeflow.worker.main import main  # takes seconds, so that bind_to_parent comes first

    return main(arguments.fd, arguments.config, known, arguments.handover, arguments.passes)


def stand_by(fd: int, load: Callable[[], None]) -> PassTimes | None:
    """Load, report, wait; return the pass times that come with `Begin`.

    Loading uses only idle processor time. The threads that it starts, and the rest of the process, have ordinary
    priority.
    """

    def load_idly() -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # this thread runs only when no other needs the processor
                os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        load()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # where that is permitted: otherwise its end is late on a busy machine
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    loading = threading.Thread(target=load_idly, name="load")
    loading.start()
    loading.join()
    sock = socket.socket(fileno=fd)
    try:
        channel = BlockingChannel(sock)
        channel.send(StandingBy())
        message = channel.receive()
    finally:
        sock.detach()
    return message.pass_times if isinstance(message, Begin) else None


def _load() -> None:
    import edgeflow.worker.main  # noqa: F401
