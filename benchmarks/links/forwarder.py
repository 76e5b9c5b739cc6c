"""The process between two TUN devices: what enters one leaves the other when the link says so.

    python -m benchmarks.links.forwarder FD FD LINK

It ends when its input does. The kernel's TCP on both sides sees packets that are late, lost or in a queue, as on a real
link. It stands in for netem, which not every kernel has.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from contextlib import suppress
from random import Random

from benchmarks.links.model import LINKS, EmulatedLink, LinkDirection

PACKET_BYTES = 65_536
SEED = 7
TURN = 64
"""Packets read from one side before the other gets its turn."""


class PacketPipe:
    """Packets from one device to the other."""

    def __init__(self, source: int, sink: int, direction: LinkDirection) -> None:
        self._source, self._sink = source, sink
        self._direction = direction
        self._waiting: deque[tuple[float, bytes]] = deque()

    def read(self) -> None:
        """Take what has entered."""
        for _ in range(TURN):
            try:
                packet = os.read(self._source, PACKET_BYTES)
            except BlockingIOError:
                return
            leaves_ns = self._direction.leaves_ns(time.monotonic_ns(), len(packet))
            if leaves_ns is not None:
                self._waiting.append((leaves_ns, packet))

    def write(self) -> float | None:
        """Let out what is due; returns when the next packet is, None without one."""
        while self._waiting and self._waiting[0][0] <= time.monotonic_ns():
            _, packet = self._waiting.popleft()
            with suppress(OSError):  # the device is gone or full, as a receiver's may be
                os.write(self._sink, packet)
        return self._waiting[0][0] if self._waiting else None


def forward(near: int, far: int, link: EmulatedLink) -> None:
    """Forward packets between two devices until standard input ends."""
    pipes = [
        PacketPipe(source, sink, LinkDirection(link, Random(SEED + index)))
        for index, (source, sink) in enumerate(((near, far), (far, near)))
    ]
    for each in (near, far):
        os.set_blocking(each, False)
    poll = select.epoll()
    for each in (near, far, sys.stdin.fileno()):
        poll.register(each, select.EPOLLIN)
    while True:
        due = [at for pipe in pipes if (at := pipe.write()) is not None]
        wait_s = max((min(due) - time.monotonic_ns()) / 1e9, 0.0) if due else None
        ready = {descriptor for descriptor, _ in poll.poll(wait_s)}
        if sys.stdin.fileno() in ready:
            return
        for descriptor, pipe in zip((near, far), pipes, strict=True):
            if descriptor in ready:
                pipe.read()


if __name__ == "__main__":
    forward(int(sys.argv[1]), int(sys.argv[2]), next(link for link in LINKS if link.name == sys.argv[3]))
