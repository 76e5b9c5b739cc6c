"""Robots that take more than they declared, and what that costs an honest one.

    .venv/bin/python -m benchmarks.chaos cheat --json FILE

At the pace of `--profile rtx5090` an honest robot in mode serial sends 5 frames per second. Blocks in which it is alone
alternate with blocks beside a robot that declares 1 Hz and keeps it (for comparison, without a bar); that sends 15 Hz;
that sends a new instruction with every frame, 1,000 resets and 100 second Opens per second; and beside two that send
progressive JPEGs of 2000x2000 at 10 Hz. Those declare 10, 5, 2 and then 1 Hz until they are admitted.
"""

from __future__ import annotations

import io
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection

import grpc
import numpy as np
from PIL import Image

from benchmarks.chaos.interference import QUIET, Bars, RobotHistory, Spans, bystanders, undisturbed, verdict
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import SMALL, Channel, KillableProcess, opening, picture, run_until_stopped
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat

HONEST_HZ = 5.0
PLACES = 4
BLOCK_S, SETTLE_S = 20.0, 2.0
PROFILE = "rtx5090"
HONEST = "one that keeps 1 Hz"
BARS = Bars(rise_percent=10.0)
DECLARED_HZ, TIMES = 1.0, 15
RESETS_HZ, OPENS_HZ = 1000, 100
BURST = 10  # messages between two checks of the clock
BIG = CameraSpec("wrist", 2000, 2000, ImageFormat.JPEG)
BIG_HZ = 10.0
LESS_HZ = (10.0, 5.0, 2.0, 1.0)  # declared until one is admitted
COME_AGAIN_S = 0.1
GRID = 50  # squares per side; soft edges make a progressive picture slow to decode
Messages = Iterator[pb.ClientMessage]


def main() -> int:
    """Run the scenario; return the exit code."""
    made = parser(__doc__, 4)
    made.add_argument("--seconds", type=float, default=BLOCK_S, help="length of a block")
    arguments = made.parse_args()
    report = ScenarioReport("cheat", arguments)
    spans = Spans()
    heard: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with (
        light_policy(PLACES, profile=PROFILE) as config,
        ServiceUnderTest(config) as service,
        KillableProcess(bystanders, service.address, 1, HONEST_HZ, pb.MODE_SERIAL) as robot,
    ):
        robot.receive()
        with progress() as bar:
            for kind in bar.track(list(KINDS) * arguments.trials, description="blocks of cheats"):
                spans.wait(QUIET, arguments.seconds)
                with KillableProcess(KINDS[kind], service.address, arguments.seed) as cheat:
                    cheat.receive()
                    time.sleep(min(SETTLE_S, arguments.seconds))
                    spans.wait(kind, arguments.seconds)
                    counted, refused = cheat.finish()
                    heard[kind] += counted + Counter(f"refused: {text}" for text in refused if text)
                    cheat.process.join()
        tracks = robot.finish()
    return report.finish(
        _rows(tracks, spans, heard),
        spans=[asdict(each) for each in spans.all],
        holds=tracks[0].holds,
        heard={kind: dict(each) for kind, each in heard.items()},
    )


def _rows(tracks: Sequence[RobotHistory], spans: Spans, heard: dict[str, Counter[str]]) -> list[BoundedFigure]:
    rows = undisturbed("honest robot", tracks, spans.all)
    for kind, counted in heard.items():
        rows += judged(tracks, spans, kind)
        length_s = sum(span.end_ns - span.start_ns for span in spans.all if span.kind == kind) / 1e9
        rows.append(
            BoundedFigure(f"actions per second to {kind}", counted["actions"] / length_s if length_s else 0.0, "/s")
        )
    return rows


def judged(tracks: Sequence[RobotHistory], spans: Spans, kind: str) -> list[BoundedFigure]:
    """The honest robot's rows; beside another honest one they have no bars."""
    rows = verdict("honest robot", tracks, spans.all, kind, BARS)
    return [BoundedFigure(row.what, row.value, row.unit) for row in rows] if kind == HONEST else rows


class Cheat:
    """A stream of given messages, which is opened again when it ends; `heard` counts the received messages."""

    def __init__(self, address: str, messages: Callable[[], Messages]) -> None:
        self.heard: Counter[str] = Counter()
        self.stopped = threading.Event()
        self.refused = ""
        self._messages = messages
        self._channel = Channel(address)

    def run(self) -> None:
        """Cheat until `stopped`."""
        while not self.stopped.is_set():
            self._stream()
            self.stopped.wait(COME_AGAIN_S)
        self._channel.channel.close()

    def _stream(self) -> None:
        call = self._channel.stream(self._until_stopped())
        try:
            for message in call:
                self._receive(message)
                if self.stopped.is_set():
                    call.cancel()
        except grpc.RpcError as error:
            self.refused = error.details() or ""
            self.heard[f"ended {error.code().name}"] += 1

    def _until_stopped(self) -> Messages:
        for message in self._messages():
            if self.stopped.is_set():
                return
            yield message

    def _receive(self, message: pb.ServerMessage) -> None:
        match message.WhichOneof("kind"):
            case "action" if message.action.command == pb.COMMAND_ACT:
                self.heard["actions"] += 1
            case "frame_status" if message.frame_status.reason:
                first = message.frame_status.seq
                self.heard[message.frame_status.reason] += max(message.frame_status.last_seq, first) - first + 1
            case "notice":
                self.heard["notices"] += 1


def frame(seq: int, image: bytes, instruction: str = "") -> pb.ClientMessage:
    """A frame, with a new instruction if one is given."""
    made = pb.Frame(seq=seq, stamp_ns=time.monotonic_ns(), images=[pb.Image(data=image)])
    if instruction:
        made.instruction = instruction
    return pb.ClientMessage(frame=made)


def frames(camera: CameraSpec, image: bytes, declared_hz: float, sent_hz: float) -> Messages:
    """A stream that declares one rate and sends at another."""
    yield opening(camera, declared_hz)
    for seq, _ in enumerate(_paced(sent_hz), 1):
        yield frame(seq, image)


def everything(image: bytes, seed: int) -> Messages:
    """A stream of resets, second Opens, and frames that each bring a new instruction."""
    generator, seq = random.Random(seed), 0
    yield opening(SMALL, DECLARED_HZ)
    for turn, _ in enumerate(_paced(RESETS_HZ)):
        yield pb.ClientMessage(reset=pb.Reset())
        if turn % (RESETS_HZ // OPENS_HZ) == 0:
            yield opening(SMALL, DECLARED_HZ)
        if turn % (RESETS_HZ // (TIMES * int(DECLARED_HZ))) == 0:
            seq += 1
            yield frame(seq, image, f"grasp handle {generator.randrange(1 << 30)}")


def _paced(per_s: float) -> Iterator[None]:
    """Turns at this rate: in short bursts if it is high, without losses."""
    burst = max(round(per_s / RESETS_HZ * BURST), 1)
    due = time.monotonic()
    for turn in itertools.count():
        if turn % burst == 0:
            due = max(due + burst / per_s, time.monotonic() - 1.0)
            time.sleep(max(due - time.monotonic(), 0))
        yield


def big_picture(seed: int) -> bytes:
    """A progressive JPEG of 4 million pixels, in just under a megabyte."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (BIG.height // GRID, BIG.width // GRID, 3), np.uint8)
    pixels = coarse.repeat(GRID, 0).repeat(GRID, 1).astype(np.int16) + generator.integers(
        -24, 25, (BIG.height, BIG.width, 1), np.int16
    )
    picture_of = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    for quality in (70, 50, 30, 15):
        file = io.BytesIO()
        picture_of.save(file, "JPEG", quality=quality, progressive=True)
        if file.tell() < 1_000_000:
            return file.getvalue()
    raise ValueError("the picture is too large at any quality")


def over_rate(link: Connection, address: str, seed: int) -> None:  # noqa: ARG001
    """Work of a process: frames at TIMES times the declared rate."""
    image = picture()
    _run(link, [Cheat(address, lambda: frames(SMALL, image, DECLARED_HZ, TIMES * DECLARED_HZ))])


def in_rate(link: Connection, address: str, seed: int) -> None:  # noqa: ARG001
    """Work of a process: the same robot, but it keeps its rate."""
    image = picture()
    _run(link, [Cheat(address, lambda: frames(SMALL, image, DECLARED_HZ, DECLARED_HZ))])


def restless(link: Connection, address: str, seed: int) -> None:
    """Work of a process: new instructions, resets and second Opens."""
    image = picture()
    _run(link, [Cheat(address, lambda: everything(image, seed))])


def big_pictures(link: Connection, address: str, seed: int) -> None:
    """Work of a process: two robots with pictures that take long to decode; they declare a lower rate if they are
    rejected.
    """
    image = big_picture(seed)
    rates = [itertools.chain(LESS_HZ, itertools.repeat(LESS_HZ[-1])) for _ in range(2)]

    def robot(declared: Iterator[float]) -> Cheat:
        return Cheat(address, lambda: frames(BIG, image, next(declared), BIG_HZ))

    _run(link, [robot(declared) for declared in rates])


def _run(link: Connection, cheats: list[Cheat]) -> None:
    def stop() -> None:
        for cheat in cheats:
            cheat.stopped.set()

    run_until_stopped(link, [cheat.run for cheat in cheats], stop, 0)
    heard = sum((cheat.heard for cheat in cheats), Counter[str]())
    link.send((heard, [cheat.refused for cheat in cheats]))


KINDS = {
    HONEST: in_rate,
    "15 times the declared rate": over_rate,
    "new instructions, resets and Opens": restless,
    "two with pictures of 4 MP": big_pictures,
}
