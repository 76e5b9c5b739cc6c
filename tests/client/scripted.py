"""A real gRPC server whose side of the conversation a test writes as a function."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.rpc.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
CAMERA = CameraSpec("wrist", 8, 6, ImageFormat.RGB8)
VALUES = [0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
_END = object()


class Refuse(Exception):
    """Raised by a script: the stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, text: str, **trailers: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text
        self.trailers = tuple((key.replace("_", "-"), value) for key, value in trailers.items())


class Left(Exception):
    """The robot ended the stream before it sent its Open, as at the end of a test."""


class Talk:
    """One stream, from the server's side."""

    def __init__(self, server: Server, requests: Iterator[pb.ClientMessage], number: int) -> None:
        self.server, self.number = server, number
        self._requests = requests
        self.out: queue.SimpleQueue = queue.SimpleQueue()
        self.epoch = 1

    def hear(self) -> pb.ClientMessage | None:
        """The next message; None when the robot left."""
        try:
            message = next(self._requests, None)
        except grpc.RpcError:
            return None
        if message is not None:
            self.server.heard.put(message)
        return message

    def frames(self) -> Iterator[pb.Frame]:
        while (message := self.hear()) is not None:
            if message.HasField("frame"):
                yield message.frame

    def say(self, **kind) -> None:
        self.out.put(pb.ServerMessage(**kind))

    def open(self, *, valid_for_ms: int = 100, **schema) -> pb.Open:
        message = self.hear()
        if message is None:
            raise Left
        assert message.HasField("open")
        self.valid_for_ms = valid_for_ms
        self.say(opened=opened(valid_for_ms, **schema))
        return message.open

    def act(self, frame: pb.Frame, values=VALUES, *, epoch: int | None = None, **fields) -> None:
        self.say(
            action=pb.Action(
                epoch=self.epoch if epoch is None else epoch,
                seq=frame.seq,
                stamp_ns=frame.stamp_ns,
                command=pb.COMMAND_ACT,
                valid_for_ms=self.valid_for_ms,
                values=values,
                **fields,
            )
        )
        self.status(frame, pb.DISPOSITION_ACTED)

    def status(self, frame: pb.Frame, disposition: int, **fields) -> None:
        self.say(frame_status=pb.FrameStatus(seq=frame.seq, disposition=disposition, **fields))

    def stall(self) -> None:
        """Say nothing until the test is over."""
        self.server.stopping.wait()


def opened(valid_for_ms: int = 100, predicted_age_ms: float = 0.0, *, relative: bool = True, **stated) -> pb.Opened:
    """An answer to Open. stated: fields of its schema."""
    dimensions = [
        pb.ActionDimension(name=name, unit="1", low=-1, high=1, relative=relative and name != "gripper")
        for name in NAMES
    ]
    schema = pb.ActionSchema(dimensions=dimensions, frame="tool", rotation="rotvec", **stated)
    return pb.Opened(
        session=1,
        epoch=1,
        schema=schema,
        action_tokens=len(NAMES),
        mode=pb.MODE_SERIAL,
        model="scripted",
        valid_for_ms=valid_for_ms,
        predicted_age_ms=predicted_age_ms,
    )


def session_settings(**changed) -> SessionSettings:
    """The settings of a robot that leaves everything it can to the service."""
    return SessionSettings(**({"cameras": (CAMERA,), "control_period_s": 0.05, "mode": Mode.SERIAL} | changed))


def answer_all(talk: Talk) -> None:
    """A service that answers every frame at once."""
    talk.open()
    while (message := talk.hear()) is not None:
        if message.HasField("frame"):
            talk.act(message.frame)
        elif message.HasField("reset"):
            talk.epoch += 1
            talk.say(notice=pb.Notice(kind="epoch", epoch=talk.epoch))


class Server(ControlServicer):
    """Listens on a free port of loopback; every stream runs `script`. credentials: of TLS."""

    def __init__(self, script: Callable[[Talk], None], port: int = 0, credentials=None) -> None:
        self.script = script
        self.metadata: dict[str, str] = {}  # of the newest stream
        self.heard: queue.SimpleQueue = queue.SimpleQueue()
        self.stopping = threading.Event()
        self.streams = 0
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        add_ControlServicer_to_server(self, self._server)
        where = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(where)
        else:
            self.port = self._server.add_secure_port(where, credentials)
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def Stream(self, requests, context):
        self.streams += 1
        self.metadata = dict(context.invocation_metadata())
        talk = Talk(self, requests, self.streams)
        thread = threading.Thread(target=self._run, args=(talk,), daemon=True)
        thread.start()
        while (item := talk.out.get()) is not _END:
            if isinstance(item, Refuse):
                context.set_trailing_metadata(item.trailers)
                context.abort(item.code, item.text)
            yield item

    def _run(self, talk: Talk) -> None:
        try:
            self.script(talk)
        except Refuse as refusal:
            talk.out.put(refusal)
        except Left:
            pass
        finally:
            talk.out.put(_END)

    def stop(self) -> None:
        """Every stream ends at once, as when the process dies."""
        self.stopping.set()
        self._server.stop(0).wait()
