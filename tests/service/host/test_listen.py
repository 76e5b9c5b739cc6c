"""Listening sockets: what the system takes in before anybody reads."""

from __future__ import annotations

import contextlib
import select
import socket

from edgeflow.service.host.listen import RECEIVE_BYTES, bind

WHOLE = 8 << 20


def test_a_connection_that_nobody_reads_holds_little_memory():
    with bind("http.port", "127.0.0.1", 0) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        client.connect(listener.getsockname())
        client.setblocking(False)
        sent = 0
        while sent < WHOLE and select.select([], [client], [], 0.2)[1]:
            with contextlib.suppress(BlockingIOError):
                sent += client.send(bytes(16 << 10))
    assert 0 < sent < 4 * RECEIVE_BYTES
