"""Entry of the worker process, started by the front with `--fd N --config FILE`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from edgeflow.engine.leash import bind_to_front


def run() -> NoReturn:
    """The whole life of the process."""
    parser = argparse.ArgumentParser(description="edgeflow worker process; started by `edgeflow serve`")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the front")
    parser.add_argument("--config", type=Path, required=True, help="the resolved configuration")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process id of the front")
    parser.add_argument("--stacks", type=int, help="inherited pipe for what threads do when they hang or crash")
    parser.add_argument("--pass-times", type=int, nargs=6, help="as the worker before measured them")
    arguments = parser.parse_args()
    bind_to_front(arguments.parent, arguments.fd, arguments.stacks)

    from edgeflow.engine.main import main  # seconds: the leash comes first
    from edgeflow.scheduler.cost import PassTimes

    known = PassTimes(*arguments.pass_times) if arguments.pass_times else None
    exit_code = main(arguments.fd, arguments.config, known)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # tearing down the interpreter and torch can outlast the front's patience on a busy machine
