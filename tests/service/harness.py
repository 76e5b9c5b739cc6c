"""A service on free ports with a scripted worker, and a robot that speaks raw messages to it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import httpx
import numpy as np
import simplejpeg

from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.service.app import Service
from edgeflow.service.frontends.grpc.codec import ParsedMessage, parse_client_message
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow.service.observe.log import EventLog
from edgeflow.service.status import ServiceStatus
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.inline import InlineChildren
from tests.service.scripted import Script

WIDTH, HEIGHT = 32, 24
WAIT_S = 60.0  # also for a real worker that starts on a loaded machine
Predicate = Callable[[pb.ServerMessage], bool]


def jpeg(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    pixels = np.arange(width * height * 3, dtype=np.uint32).reshape(height, width, 3).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels)
    return data


JPEG = jpeg()


def open_message(**changes) -> pb.Open:
    values = {
        "cameras": [pb.Camera(name="wrist", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)],
        "instruction": "grasp the red handle",
        "control_period_ms": 50,
    }
    return pb.Open(**{**values, **changes})


def frame_message(seq: int, data: bytes = JPEG, **changes) -> pb.Frame:
    values = {"seq": seq, "stamp_ns": seq * 1_000_000, "images": [pb.Image(data=data)]}
    return pb.Frame(**{**values, **changes})


def received(frame: pb.Frame) -> ParsedMessage[pb.ClientMessage]:
    """The frame as it comes out of a stream."""
    message = parse_client_message(pb.ClientMessage(frame=frame).SerializeToString())
    assert isinstance(message, ParsedMessage)
    return message


class WireRobot:
    """A raw client of one stream; the request side takes bytes, so that anything can be sent."""

    def __init__(self, stream: grpc.aio.StreamStreamMultiCallable) -> None:
        self._stream = stream
        self.seen: list[pb.ServerMessage] = []
        self.streams = 0  # begun so far
        self.connect()

    def connect(self) -> None:
        """Begin a stream, instead of the one there was."""
        self.streams += 1
        self.call = self._stream()

    async def send(self, message: pb.ClientMessage | bytes) -> None:
        await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def open(self, **changes) -> pb.Opened:
        await self.send(pb.ClientMessage(open=open_message(**changes)))
        message = await self.until(lambda m: m.WhichOneof("kind") == "opened")
        return message.opened

    async def frame(self, seq: int, data: bytes = JPEG, **changes) -> None:
        await self.send(pb.ClientMessage(frame=frame_message(seq, data, **changes)))

    async def read(self) -> pb.ServerMessage:
        message = await self._next()
        assert message is not None, f"the stream ended: {await self.call.code()} {await self.call.details()}"
        return message

    async def _next(self) -> pb.ServerMessage | None:
        try:
            message = await asyncio.wait_for(self.call.read(), WAIT_S)
        except grpc.aio.AioRpcError:
            return None
        if message is grpc.aio.EOF:
            return None
        self.seen.append(message)
        return message

    async def until(self, wanted: Predicate) -> pb.ServerMessage:
        while True:
            message = await self.read()
            if wanted(message):
                return message

    async def status(self, seq: int) -> pb.FrameStatus:
        """What became of a frame."""
        message = await self.until(
            lambda m: (
                m.WhichOneof("kind") == "frame_status"
                and m.frame_status.seq <= seq <= max(m.frame_status.seq, m.frame_status.last_seq)
            )
        )
        return message.frame_status

    async def action(self, seq: int) -> pb.Action:
        message = await self.until(lambda m: m.WhichOneof("kind") == "action" and m.action.seq == seq)
        return message.action

    async def hold(self, reason: str) -> pb.Action:
        message = await self.until(lambda m: m.WhichOneof("kind") == "action" and m.action.reason == reason)
        assert message.action.command == pb.COMMAND_HOLD and not message.action.values
        return message.action

    async def notice(self, kind: str) -> pb.Notice:
        message = await self.until(lambda m: m.WhichOneof("kind") == "notice" and m.notice.kind == kind)
        return message.notice

    async def rest(self) -> tuple[grpc.StatusCode, str]:
        """Read to the end; how the stream ended."""
        while await self._next() is not None:
            pass
        return await self.call.code(), await self.call.details()

    def dispositions(self) -> list[tuple[int, int]]:
        """(seq, disposition) of all that was read, ranges spelled out."""
        found = []
        for message in self.seen:
            if message.WhichOneof("kind") == "frame_status":
                status = message.frame_status
                last = max(status.seq, status.last_seq)
                found += [(seq, status.disposition) for seq in range(status.seq, last + 1)]
        return found


class RunningService:
    """A running service."""

    def __init__(
        self,
        service: Service,
        script: Script,
        log: io.StringIO,
        channel: grpc.aio.Channel,
        children: InlineChildren,
    ) -> None:
        self.service = service
        self.children = children
        self.script = script
        self.channel = channel
        self._log = log

    @property
    def http(self) -> str:
        return self.service.status.http_address

    def robot(self, channel: grpc.aio.Channel | None = None) -> WireRobot:
        stream = (channel or self.channel).stream_stream(
            f"/{SERVICE}/Stream", request_serializer=bytes, response_deserializer=pb.ServerMessage.FromString
        )
        return WireRobot(stream)

    async def act(self, request: pb.ActRequest | bytes) -> pb.ActResponse:
        call = self.channel.unary_unary(
            f"/{SERVICE}/Act", request_serializer=bytes, response_deserializer=pb.ActResponse.FromString
        )
        return await call(request if isinstance(request, bytes) else request.SerializeToString(), timeout=WAIT_S)

    @property
    def log(self) -> str:
        """All lines so far."""
        return self._log.getvalue()

    def events(self, name: str) -> list[dict]:
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def metric(self, name: str, **labels: str) -> float:
        """The sum over control and children."""
        registries = [self.service.metrics.registry, *self.children.registries()]
        return sum(registry.get_sample_value(name, labels) or 0.0 for registry in registries)


async def rush(served: RunningService, robot: WireRobot, frames: int, control_period_ms: int) -> grpc.StatusCode:
    """A whole stream of frames that come faster than a holding worker answers; returns how it ended."""
    await robot.open(control_period_ms=control_period_ms)
    for seq in range(1, frames + 1):
        await robot.frame(seq)
    worker = served.script.worker
    await eventually(lambda: bool(worker.submitted()) and worker.submitted()[-1].seq == frames)
    worker.release(100)
    await robot.action(frames)
    await robot.call.done_writing()
    return (await robot.rest())[0]


def config(**overrides) -> ServiceConfig:
    """A configuration on free ports, without chat unless one of its keys is given.

    Actions may have any age, since machines that run tests are slow; tests of ages set a limit.
    """
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    if not any(key.startswith("chat.") for key in dotted):
        dotted["chat.enabled"] = False
    free = {"grpc.port": 0, "http.port": 0, "health.port": 0, "frontends.port": 0}
    return load_config(None, {**free, "decode_threads": 1, "max_action_age_ms": 60_000, **dotted})


@contextlib.asynccontextmanager
async def serving(
    checkpoint,
    script: Script | None = None,
    incidents: int = 0,
    chat_path: str = "",
    observers: Sequence = (),
    **overrides,
) -> AsyncIterator[RunningService]:
    """checkpoint: a directory that passes the preflight. incidents: how many bugs the test provokes.

    chat_path: of a chat front that the test plays.
    """
    script = script or Script()
    log = io.StringIO()
    announced: list[ServiceStatus] = []
    settings = config(model=str(checkpoint), alias="demo", **overrides)
    inline = InlineChildren(settings, chat_path)
    events = EventLog(MonotonicClock(), log)
    service = Service(settings, announced.append, events, script.launch, inline.launch, observers)
    await service.start()
    address = service.status.grpc_address
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            served = RunningService(service, script, log, channel, inline)
            yield served
    finally:
        await service.stop()
    assert len(served.events("incident")) == incidents, log.getvalue()


async def scraped(http: httpx.AsyncClient, wanted: str) -> str:
    """The metrics, once the snapshots contain a text."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while wanted not in (text := (await http.get("/metrics")).text):
        assert loop.time() < deadline, f"no {wanted}"
        await asyncio.sleep(0.02)
    return text


async def eventually(condition: Callable[[], bool]) -> None:
    """Until something that no event announces is so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < deadline, "it did not happen"
        await asyncio.sleep(0.005)
