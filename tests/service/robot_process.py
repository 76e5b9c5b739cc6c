"""A robot as a process, to be killed or stopped: `python -c CODE address`. It writes the number of each action."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from tests.service.front_process import robot
with robot(sys.argv[1]) as one:
    one.open()
    while True:
        one.frame()
        print(one.until("action").action.seq, flush=True)
"""


class RobotProcess:
    """Acts as fast as it can, one frame under way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def acted(self) -> int:
        """The number of its next action; 0 for a HOLD."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the robot ended"
        return int(line)


@contextmanager
def robot_processes(address: str, count: int) -> Iterator[list[RobotProcess]]:
    command = [sys.executable, "-c", CODE, address]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield [RobotProcess(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
