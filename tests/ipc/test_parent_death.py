"""A worker whose front has gone, while the kernel's signal does not come: the front's process still runs."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HUNG = """
import os, socket, sys, time
from edgeflow.ipc.parent_death import bind_to_parent
bind_to_parent(os.getppid(), int(sys.argv[1]), None)
os.write(1, b"bound")
time.sleep(3600)
"""


@contextmanager
def hung_worker() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Its process, and the front's end of the socket."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", HUNG, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        theirs.close()
        assert process.stdout is not None and process.stdout.read(5) == b"bound"
        yield process, ours
        process.kill()


def test_a_hung_worker_leaves_when_the_socket_ends_and_stays_while_it_is_open():
    with hung_worker() as (stays, talking), hung_worker() as (closed, front), hung_worker() as (half, ending):
        talking.sendall(b"something to read")
        front.close()
        assert closed.wait(60) == 0
        ending.shutdown(socket.SHUT_WR)
        assert half.wait(60) == 0
        assert stays.poll() is None
