"""A service that answers every frame with an action at once, without a model; and a TCP proxy that can stall."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import grpc

from edgeflow.rpc import control_pb2 as pb
from edgeflow.rpc.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from tests.client.scripted import NAMES, opened

CHUNK = 1 << 16


class _Servicer(ControlServicer):
    def __init__(self, valid_for_ms: int) -> None:
        self._valid_for_ms = valid_for_ms

    def Stream(
        self,
        requests: Iterator[pb.ClientMessage],
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> Iterator[pb.ServerMessage]:
        for message in requests:
            if message.HasField("open"):
                yield pb.ServerMessage(opened=opened(self._valid_for_ms))
            elif message.HasField("frame"):
                yield from self._answer(message.frame)

    def _answer(self, frame: pb.Frame) -> Iterator[pb.ServerMessage]:
        action = pb.Action(
            epoch=1,
            seq=frame.seq,
            stamp_ns=frame.stamp_ns,
            command=pb.COMMAND_ACT,
            valid_for_ms=self._valid_for_ms,
            values=[0.0] * len(NAMES),
            token_ids=[0] * len(NAMES),
        )
        yield pb.ServerMessage(action=action)
        yield pb.ServerMessage(frame_status=pb.FrameStatus(seq=frame.seq, disposition=pb.DISPOSITION_ACTED))


def fake_server(link: Connection, valid_for_ms: int) -> None:
    """Work of the server's process: report the port, then serve until the benchmark sends a message."""
    server = grpc.server(ThreadPoolExecutor(32))
    add_ControlServicer_to_server(_Servicer(valid_for_ms), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link.send(port)
    link.recv()


class Proxy:
    """Forwards TCP from its own address to `target`, a loopback port that may change; it can stop forwarding."""

    def __init__(self) -> None:
        self.target = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            _shut(each)
        self._flowing.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self) -> None:
        """Stop forwarding; connections stay open."""
        self._flowing.clear()

    def resume(self) -> None:
        """Resume forwarding, beginning with what was held back."""
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                _shut(near)
                continue
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._flowing.wait()
                sink.sendall(data)
        for each in (source, sink):
            _shut(each)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
