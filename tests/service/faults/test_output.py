"""Logs that cannot be written: a full disk, a pipe whose reader has gone, one whose reader stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edgeflow.service.observe.log import KEPT_LINES, EventLog, LineWriter
from edgeflow_client.clock import ManualClock
from tests.service.front_process import HANG_S, ROOT, front, robot, wait_for
from tests.service.processes import runs


@contextlib.contextmanager
def full_disk() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextlib.contextmanager
def closed_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextlib.contextmanager
def blocked_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    fill(writer)
    yield writer
    os.close(reader)
    os.close(writer)


def fill(writer: int) -> None:
    """Write until not one more byte fits."""
    os.set_blocking(writer, False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(size))
    os.set_blocking(writer, True)


@pytest.mark.parametrize("place", [full_disk, closed_pipe, blocked_pipe])
def test_a_log_that_cannot_be_written_changes_nothing_for_robots(checkpoint, tmp_path: Path, place):
    with place() as output, front(checkpoint, tmp_path, output=output) as made, robot(made.address) as one:
        one.open()
        one.frame()
        one.until("action")
        worker = made.worker()
        os.kill(worker, signal.SIGKILL)
        while one.until("notice").notice.kind != "worker_ready":
            pass
        assert not runs(worker)
        one.frame()
        one.until("action")
        made.signal(signal.SIGTERM)
        assert one.rest() is grpc.StatusCode.UNAVAILABLE
        assert made.ended() == 0


def test_lost_lines_are_counted_and_reported_once_writing_works_again():
    reader, writer = os.pipe()
    fill(writer)
    lines = LineWriter(writer, wall=lambda: 1.0)
    log = EventLog(ManualClock(), lines)
    for number in range(KEPT_LINES + 20):  # one line is in the hands of the thread
        log.event(f"event-{number}")
    lost = log.lost
    assert 19 <= lost <= 20
    os.set_blocking(reader, False)
    text = b""

    def reports() -> list[dict]:
        """One, and another one before it for lines that were lost before the thread had its first."""
        nonlocal text
        with contextlib.suppress(BlockingIOError):
            text += os.read(reader, 1 << 20)
        whole = text.replace(b"\0", b"").split(b"\n")[:-1]
        return [json.loads(line) for line in whole if b"log_lost" in line]

    wait_for(lambda: sum(each["lines"] for each in reports()) >= lost)
    told = reports()
    assert told == [{"time": 1.0, "level": "warning", "event": "log_lost", "lines": each["lines"]} for each in told]
    assert len(told) <= 2 and sum(each["lines"] for each in told) == lost
    assert lines.close(HANG_S)
    os.close(reader)
    os.close(writer)


def test_a_blocked_writer_does_not_delay_the_end():
    with blocked_pipe() as writer:
        lines = LineWriter(writer)
        lines.write("a line")
        begun = time.monotonic()
        assert not lines.close()
        assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize("values", [{"number": float}, {"loop": [loop := [], loop.append(loop)]}, {"text": "\udc80"}])
def test_no_value_makes_an_event_raise(values: dict[str, object]):
    class ClosedOutput:
        def write(self, text: str) -> None:
            raise ValueError("write to closed file")

        def isatty(self) -> bool:
            return False

    log = EventLog(ManualClock(), ClosedOutput())
    log.event("odd", **values)
    assert log.lost == 1


FAILS = """
import os, sys, warnings
from edgeflow_client.errors import ConfigError
from edgeflow.service.host.output import Output
with Output() as output:
    warnings.warn("from Python")
    os.write(2, b"from C \\xff\\n\\n")
    output.lines.write('{"event": "from the log"}\\n')
sys.exit("the last word")
"""


def test_lines_for_standard_error_arrive_there():
    done = subprocess.run([sys.executable, "-c", FAILS], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
    *lines, last = done.stderr.splitlines()
    told = [line.get("text", line["event"]) for line in map(json.loads, lines)]
    assert {"from C \\xff", "from the log"} < set(told) and any("from Python" in text for text in told)
    assert last == "the last word" and done.returncode == 1


@pytest.mark.parametrize("place", [full_disk, closed_pipe])
def test_a_start_that_fails_keeps_its_exit_code(tmp_path: Path, place):
    command = [sys.executable, "-m", "edgeflow.cli", "serve", "--model", str(tmp_path / "nothing")]
    with place() as output:
        assert subprocess.run(command, cwd=ROOT, stderr=output, timeout=HANG_S).returncode == 2


@pytest.mark.parametrize("place", [full_disk, closed_pipe, blocked_pipe])
def test_the_last_word_is_lost_where_nobody_can_read_it(place):
    with place() as output:
        done = subprocess.run([sys.executable, "-c", FAILS], cwd=ROOT, stderr=output, timeout=HANG_S)
    assert done.returncode == 1
