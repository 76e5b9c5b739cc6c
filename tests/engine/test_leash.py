"""A worker whose front has gone, while the kernel's signal does not come: the front's process still runs."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

HUNG = """
import os, socket, sys, time
from edgeflow.engine.leash import bind_to_front
bind_to_front(os.getppid(), int(sys.argv[1]), None)
os.write(1, b"bound")
time.sleep(3600)
"""


@pytest.fixture
def worker():
    """Its process, hung, and the front's end of the socket."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", HUNG, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        theirs.close()
        assert process.stdout is not None and process.stdout.read(5) == b"bound"
        yield process, ours
        process.kill()


@pytest.mark.parametrize("how", ["close", "half"])
def test_a_hung_worker_leaves_when_the_socket_ends(worker, how: str):
    process, front = worker
    front.close() if how == "close" else front.shutdown(socket.SHUT_WR)
    assert process.wait(10) == 0, "2 s on an idle machine"


def test_a_hung_worker_stays_while_the_socket_is_open(worker):
    process, front = worker
    front.sendall(b"something to read")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
