"""Robots of the benchmarks: a plain stream that accounts for every frame, and processes to kill.

Processes are forked from a helper that has already imported everything, so that starting one hardly loads the machine.
"""

from __future__ import annotations

import http.client
import io
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import grpc
import numpy as np
from PIL import Image

from edgeflow_client.robot import RobotClient
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat

STREAM, ACT = "/edgeflow.v1.Control/Stream", "/edgeflow.v1.Control/Act"
INSTRUCTION = "grasp the red handle"
SMALL = CameraSpec("wrist", 96, 96, ImageFormat.JPEG)
LARGE = CameraSpec("wrist", 640, 480, ImageFormat.RGB8)  # takes long enough to write to be killed in the middle
OVERCOMMIT = {"admission_headroom_percent": 0}  # robots may take all of a small machine
OPEN_S = 10.0


def picture(camera: CameraSpec = SMALL, seed: int = 0) -> bytes:
    """A random image in the camera's encoding."""
    pixels = np.random.default_rng(seed).integers(0, 256, (camera.height, camera.width, 3), np.uint8)
    if camera.format is ImageFormat.RGB8:
        return pixels.tobytes()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return file.getvalue()


class Channel:
    """A gRPC channel with its own connection; the library shares connections by default."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channel = grpc.insecure_channel(address, options)

    def stream(self, messages: Iterator[pb.ClientMessage]) -> grpc.Call:
        """Start Control.Stream."""
        call = self.channel.stream_stream(STREAM, pb.ClientMessage.SerializeToString, pb.ServerMessage.FromString)
        return call(messages)


def declared_ms(rate_hz: float) -> int:
    """The control period to declare: what the robot keeps, in whole milliseconds."""
    return int(1000 / rate_hz)


def opening(camera: CameraSpec, rate_hz: float, mode: pb.Mode = pb.MODE_PIPELINED) -> pb.ClientMessage:
    """The first message of a stream."""
    number = pb.IMAGE_FORMAT_JPEG if camera.format is ImageFormat.JPEG else pb.IMAGE_FORMAT_RGB8
    spec = pb.Camera(name=camera.name, width=camera.width, height=camera.height, format=number)
    return pb.ClientMessage(
        open=pb.Open(cameras=[spec], instruction=INSTRUCTION, control_period_ms=declared_ms(rate_hz), mode=mode)
    )


class RawRobot:
    """A robot that sends frames at a rate until `leave`; all messages it received can be read afterwards.

    before_write: called with each frame's number right before the library writes it. keep: record `dispositions`,
    `ages` and `holds`, for which a long run has no memory.
    """

    def __init__(
        self,
        address: str,
        rate_hz: float,
        camera: CameraSpec = SMALL,
        before_write: Callable[[int], None] | None = None,
        keep: bool = True,
        mode: pb.Mode = pb.MODE_PIPELINED,
    ) -> None:
        self.session = self.sent = 0
        self.dispositions: Counter[int] = Counter()
        self.ages: list[tuple[int, int]] = []  # (received, age), nanoseconds
        self.holds: list[tuple[int, str]] = []  # (received, reason)
        self.notices: list[str] = []
        self.last_command = pb.COMMAND_UNSPECIFIED
        self.code = self.text = ""
        self.acted = threading.Event()
        self._opened = threading.Event()
        self._leaving = threading.Event()
        self._ended = threading.Event()
        self._rate_hz, self._camera = rate_hz, camera
        self._before_write, self._keep = before_write, keep
        self._mode = mode
        self._image = picture(camera)
        self._channel = Channel(address)
        self._call = self._channel.stream(self._messages())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait_opened(self) -> None:
        """Wait for Opened; TimeoutError, with the status, when the service does not admit the robot."""
        if not self._opened.wait(OPEN_S) or not self.session:
            raise TimeoutError(f"no session: {self.code or 'no answer'} {self.text}")

    def leave(self) -> None:
        """Send Close, read the remaining messages, and disconnect."""
        self._leaving.set()
        self.wait_ended(OPEN_S)
        self._call.cancel()
        self._channel.channel.close()
        self._thread.join()

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait for the service to end the stream; True when it did."""
        return self._ended.wait(timeout_s)

    def _messages(self) -> Iterator[pb.ClientMessage]:
        yield opening(self._camera, self._rate_hz, self._mode)
        self._opened.wait()
        due = time.monotonic()
        while not self._leaving.wait(max(due - time.monotonic(), 0)) and not self._ended.is_set():
            due = max(due + 1 / self._rate_hz, time.monotonic())
            self.sent += 1
            if self._before_write is not None:
                self._before_write(self.sent)
            image = pb.Image(data=self._image)
            yield pb.ClientMessage(frame=pb.Frame(seq=self.sent, stamp_ns=time.monotonic_ns(), images=[image]))
        if not self._ended.is_set():
            yield pb.ClientMessage(close=pb.Close())

    def _listen(self) -> None:
        try:
            for message in self._call:
                self._receive(message)
            self.code = "OK"
        except grpc.RpcError as error:
            self.code, self.text = error.code().name, error.details() or ""
        finally:
            self._ended.set()
            self._opened.set()

    def _receive(self, message: pb.ServerMessage) -> None:
        match message.WhichOneof("kind"):
            case "opened":
                self.session = message.opened.session
                self._opened.set()
            case "action":
                self._hear_action(message.action)
            case "frame_status" if self._keep:
                status = message.frame_status
                self.dispositions.update(range(status.seq, max(status.last_seq, status.seq) + 1))
            case "notice":
                self.notices.append(message.notice.kind)

    def _hear_action(self, action: pb.Action) -> None:
        self.last_command = action.command
        now_ns = time.monotonic_ns()
        if action.command != pb.COMMAND_ACT:
            if self._keep:
                self.holds.append((now_ns, action.reason))
            return
        if self._keep:
            self.ages.append((now_ns, now_ns - action.stamp_ns))
        self.acted.set()


def client(address: str, rate_hz: float, **options: object) -> RobotClient:
    """An SDK client that acts again by itself however long the replacement of a lost worker takes."""
    return RobotClient(
        address,
        cameras=[SMALL],
        instruction=INSTRUCTION,
        control_period_s=declared_ms(rate_hz) / 1000,
        resume_within_s=86_400.0,
        open_timeout_s=30.0,
        **options,  # type: ignore[arg-type]
    )


class KillableProcess:
    """Runs `work(connection, *arguments)` in a process; leaving the context kills it."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        context = _context()
        self.link, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> KillableProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL; the process may be gone already."""
        self.process.kill()

    def close(self) -> None:
        """Kill the process and release it."""
        self.kill()
        self.process.join()
        self.link.close()

    def receive(self, timeout_s: float = 30.0) -> object:
        """The next message from the process."""
        if not self.link.poll(timeout_s):
            raise TimeoutError(f"no message from a robot for {timeout_s:g} s")
        return self.link.recv()

    def finish(self, timeout_s: float = 30.0) -> Any:
        """Ask the process to stop, and return its next message."""
        self.link.send("stop")
        return self.receive(timeout_s)


def at_work(link: Connection, robots: Sequence[RawRobot]) -> None:
    """In a process of robots: report when all of them act, and let them leave on request."""
    for robot in robots:
        robot.wait_opened()
        robot.acted.wait()
    link.send("acting")
    link.recv()
    for robot in robots:
        robot.leave()


def told_to_stop(link: Connection, wait_s: float | None = 0.0) -> bool:
    """In a robot's process: True when the benchmark asked it to stop, or is gone."""
    return link.poll(wait_s)


def run_until_stopped(
    link: Connection, works: Sequence[Callable[[], None]], stop: Callable[[], None], join_s: float | None = None
) -> None:
    """In a process of strangers: run each work in a thread, and end all by `stop` when the benchmark asks for it."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    link.send("at it")
    link.poll(None)
    stop()
    for thread in threads:
        thread.join(join_s)


def http_status(port: int, method: str, path: str, body: bytes | None, patience_s: float) -> int:
    """The status of the answer to a request on a new connection; 0 if there is none."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        link.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = link.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        link.close()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.chaos.robots"])
    return context
