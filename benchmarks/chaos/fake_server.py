"""A service that answers every frame with an action at once, without a model; and a TCP proxy that can stall."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

import grpc

from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.rpc.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from tests.client.scripted import NAMES, opened

CHUNK = 1 << 16
SERVICE, ROBOT = "service", "robot"  # the ends that a proxy forwards to
STREAMS = 1024  # streams whose robot is gone also occupy a thread while their connection is stalled


@dataclass(frozen=True, slots=True)
class Manners:
    """The server's behaviour."""

    max_age_ms: int = 0
    """Sent with every action; 0 = not sent."""
    predicted_age_ms: float = 0.0
    """Sent in the answer to Open."""
    first_late_s: float = 0.0
    late_s: float = 0.0
    """Both: time from a frame's stamp to its action, for the first frame of a stream and for every frame."""


class _Servicer(ControlServicer):
    def __init__(self, valid_for_ms: int, manners: Manners) -> None:
        self._valid_for_ms = valid_for_ms
        self._manners = manners

    def Stream(
        self,
        requests: Iterator[pb.ClientMessage],
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> Iterator[pb.ServerMessage]:
        epoch = 1
        for message in requests:
            match message.WhichOneof("kind"):
                case "open":
                    yield pb.ServerMessage(opened=opened(self._valid_for_ms, self._manners.predicted_age_ms))
                case "reset":
                    epoch += 1
                    yield pb.ServerMessage(notice=pb.Notice(kind="epoch", epoch=epoch))
                case "frame":
                    late_s = self._manners.late_s if message.frame.seq > 1 else self._manners.first_late_s
                    time.sleep(max(message.frame.stamp_ns / 1e9 + late_s - time.monotonic(), 0))
                    yield from self._answer(message.frame, epoch)

    def _answer(self, frame: pb.Frame, epoch: int) -> Iterator[pb.ServerMessage]:
        action = pb.Action(
            epoch=epoch,
            seq=frame.seq,
            stamp_ns=frame.stamp_ns,
            command=pb.COMMAND_ACT,
            valid_for_ms=self._valid_for_ms,
            values=[0.0] * len(NAMES),
            token_ids=[0] * len(NAMES),
            max_age_ms=self._manners.max_age_ms,
        )
        yield pb.ServerMessage(action=action)
        yield pb.ServerMessage(frame_status=pb.FrameStatus(seq=frame.seq, disposition=pb.DISPOSITION_ACTED))


def fake_server(link: Connection, valid_for_ms: int, manners: Manners = Manners()) -> None:
    """Work of the server's process: report the port, then serve until the benchmark sends a message."""
    server = grpc.server(ThreadPoolExecutor(STREAMS))
    add_ControlServicer_to_server(_Servicer(valid_for_ms, manners), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link.send(port)
    link.recv()


class Proxy:
    """Forwards TCP from its own address to `target`, a loopback port that may change; it can stop forwarding."""

    def __init__(self) -> None:
        self.target = 0
        self._flowing = {towards: threading.Event() for towards in (SERVICE, ROBOT)}
        self.resume()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            _shut(each)
        self.resume()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self, towards: Sequence[str] = (SERVICE, ROBOT)) -> None:
        """Stop forwarding in these directions; connections stay open."""
        for each in towards:
            self._flowing[each].clear()

    def resume(self) -> None:
        """Resume forwarding, starting with the bytes that were held back."""
        for each in self._flowing.values():
            each.set()

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
            for source, sink, towards in ((near, far, SERVICE), (far, near, ROBOT)):
                threading.Thread(target=self._pump, args=(source, sink, self._flowing[towards]), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flowing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                flowing.wait()
                sink.sendall(data)
        for each in (source, sink):
            _shut(each)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
