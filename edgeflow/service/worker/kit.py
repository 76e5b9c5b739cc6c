"""The descriptors of one worker, made before it is started."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from edgeflow.ipc.packets import packet_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Both ends of everything that connects control and a worker.

    sock: messages. handover: where the worker expects sockets to the chat front. stacks: a pipe for what its threads
    were doing when it hung or crashed.
    """

    sock: socket.socket
    worker_sock: socket.socket
    handover: socket.socket
    worker_handover: socket.socket
    stacks: int
    worker_stacks: int

    @classmethod
    def make(cls) -> Kit:
        """Make a kit; OSError without descriptors or memory, with nothing left open."""
        with contextlib.ExitStack() as undo:
            sock, worker_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(sock.close)
            undo.callback(worker_sock.close)
            handover, worker_handover = packet_pair()
            undo.callback(handover.close)
            undo.callback(worker_handover.close)
            stacks, worker_stacks = os.pipe()
            undo.pop_all()
        os.set_blocking(stacks, False)
        return cls(
            sock=sock,
            worker_sock=worker_sock,
            handover=handover,
            worker_handover=worker_handover,
            stacks=stacks,
            worker_stacks=worker_stacks,
        )

    def inherited(self) -> tuple[int, int, int]:
        """The worker's descriptors: messages, handover, stacks."""
        return self.worker_sock.fileno(), self.worker_handover.fileno(), self.worker_stacks

    def close_inherited(self) -> None:
        """Close the worker's ends here."""
        self.worker_sock.close()
        self.worker_handover.close()
        os.close(self.worker_stacks)

    def close(self) -> None:
        """Close all of it."""
        self.close_inherited()
        self.sock.close()
        self.handover.close()
        os.close(self.stacks)
