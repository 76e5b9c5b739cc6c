"""Robots with openpi's protocol, their observations, and the stub policy's answers to these."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from benchmarks.chaos.interference import Observer, RobotHistory
from benchmarks.chaos.robots import INSTRUCTION, OVERCOMMIT, declared_ms, told_to_stop
from benchmarks.chaos.service import ServiceUnderTest, Surroundings
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from edgeflow_client.actions import Directive
from edgeflow_client.errors import EdgeflowError
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec
from tests.plugins.edgeflow_stub import answer
from tests.stub_policy import environment, stub_checkpoint

CAMERAS = ("image", "wrist_image")
SIDE, NUMBERS = 224, 8
HORIZON, DIMS = 10, 7
MOST_VALUES = 1000
PATIENCE_S = 30.0
REST_S = 0.05  # before a robot that lost its connection reconnects
NICE = 10  # niceness of attackers, which would use the processors of other machines in reality


@contextmanager
def stub_service(
    robots: int, config: Mapping[str, Any], *, period_ms: int = 100, **stub: object
) -> Iterator[ServiceUnderTest]:
    """A service for this many robots with a stub policy, whose other settings are those of `stub_checkpoint`."""
    sizes: dict[str, Any] = {"cameras": dict.fromkeys(CAMERAS), "state": {"state": NUMBERS}}
    with TemporaryDirectory(prefix="edgeflow-stub-") as folder:
        model = stub_checkpoint(Path(folder) / "stub", **sizes, horizon=HORIZON, actions=DIMS, **stub)  # type: ignore[arg-type]
        whole = {
            "model": str(model),
            "chat": {"enabled": False},
            "max_sessions": robots,
            "frontends": {"openpi": {"period_ms": period_ms}},
            **OVERCOMMIT,
        }
        with ServiceUnderTest({**whole, **config}, around=Surroundings(environment=environment())) as service:
            yield service


class DistinctObservations:
    """Observations that are all different."""

    def __init__(self, seed: int, side: int = SIDE) -> None:
        generator = np.random.default_rng(seed)
        self.images = {name: generator.integers(0, 256, (side, side, 3), np.uint8) for name in CAMERAS}
        self.state = generator.normal(size=NUMBERS).astype(np.float32)
        self._shown = 0

    def change(self) -> None:
        """Go on to the next observation."""
        self._shown += 1
        for image in self.images.values():
            image[0, 0] = tuple(self._shown.to_bytes(3, "little"))

    def observation(self) -> dict[str, Any]:
        """The current observation, with the names of openpi's clients."""
        images = {f"observation/{name}": image for name, image in self.images.items()}
        return {**images, "observation/state": self.state, "prompt": INSTRUCTION}

    def message(self) -> bytes:
        """The current observation, packed."""
        return pack(self.observation(), ArrayCoding.OPENPI)

    def chunk(self) -> np.ndarray:
        """The right answer to it, [HORIZON, DIMS] of float64."""
        return answer(self.images, {"state": self.state.tolist()}, HORIZON, DIMS)


class OpenpiLink:
    """A connection of an openpi client. source: its address."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._stack = ExitStack()
        where = {"compression": None, "max_size": None, "source_address": (source, 0), "ping_interval": None}
        self._socket = self._stack.enter_context(
            connect(f"ws://127.0.0.1:{port}", open_timeout=PATIENCE_S, close_timeout=1.0, **where)  # type: ignore[arg-type]
        )
        self.metadata = unpack(self._heard(), MOST_VALUES)[0]

    def ask(self, message: bytes | str | list[bytes]) -> bytes | str:
        """The reply to a message, or to one in parts; TimeoutError or WebSocketException without one."""
        self._socket.send(message)
        return self._socket.recv(PATIENCE_S)

    def close(self) -> None:
        """Close with a close handshake."""
        with suppress(OSError, WebSocketException):
            self._stack.close()

    def _heard(self) -> bytes:
        first = self._socket.recv(PATIENCE_S)
        if isinstance(first, str):
            raise WebSocketException(first)
        return first


def rows(reply: bytes | str) -> np.ndarray | None:
    """The chunk of a reply; None if it has none."""
    if isinstance(reply, str):
        return None
    value = unpack(reply, MOST_VALUES)[0]
    found = value.get("actions") if isinstance(value, dict) else None
    return found if isinstance(found, np.ndarray) else None


def is_right(reply: bytes | str, scene: DistinctObservations) -> bool:
    """True if a reply is the chunk of the current observation."""
    found = rows(reply)
    return found is not None and np.array_equal(found, scene.chunk().astype(np.float32))


@dataclass(slots=True)
class RobotRecord:
    """The record of a robot."""

    track: RobotHistory = field(default_factory=RobotHistory)
    """Its actions by time of arrival and round trip; every other answer, and the loss of the connection, counts as a
    HOLD.
    """
    asked: int = 0
    wrong: int = 0
    """Number of actions that are not those of their observations."""

    @property
    def lost(self) -> list[str]:
        """How answers were lost: connections that ended, and requests without any answer."""
        return [text for _, text in self.track.holds if text.startswith("lost")]


def openpi_track(link: Connection, port: int, rate_hz: float, source: str = "127.0.0.1", seed: int = 0) -> None:
    """Work of a process: a robot that asks at a rate, which reports that it acts, and its Kept at the end."""
    kept, scene, reported = RobotRecord(), DistinctObservations(seed), False
    socket: OpenpiLink | None = None
    due = time.monotonic()
    while not told_to_stop(link, max(due - time.monotonic(), 0)):
        due = max(due + 1 / rate_hz, time.monotonic())
        scene.change()
        message = scene.message()
        asked_ns = time.monotonic_ns()
        kept.asked += 1
        try:
            socket = socket or OpenpiLink(port, source)
            reply = socket.ask(message)
        except (OSError, WebSocketException) as error:
            kept.track.holds.append((time.monotonic_ns(), f"lost: {type(error).__name__}"))
            if socket is not None:
                socket.close()
            socket = None
            time.sleep(REST_S)
            continue
        now_ns = time.monotonic_ns()
        if rows(reply) is None:
            kept.track.holds.append((now_ns, str(reply)[:200]))
            continue
        kept.track.actions.append((now_ns, now_ns - asked_ns))
        kept.wrong += not is_right(reply, scene)
        if not reported:
            reported = True
            link.send("acting")
    link.send(kept)
    if socket is not None:
        socket.close()


class FirstRows(Observer):
    """The SDK's callback that keeps a Track of frames: the first row of each chunk."""

    _seq = 0

    def __call__(self, directive: Directive) -> None:
        action = directive.action
        if action is None or action.seq != self._seq:
            super().__call__(directive)
            self._seq = action.seq if action is not None else self._seq


def grpc_track(link: Connection, address: str, rate_hz: float, side: int = SIDE) -> None:
    """Work of a process: a robot with the SDK and the same cameras, which reports that it acts, and its Track at the
    end.
    """
    track, scene, reported = RobotHistory(), DistinctObservations(0, side), False
    robot = RobotClient(
        address,
        cameras=[CameraSpec(name, side, side, ImageFormat.RGB8) for name in CAMERAS],
        instruction=INSTRUCTION,
        control_period_s=declared_ms(rate_hz) / 1000,
        state=[StateSpec(name="state", size=NUMBERS)],
        on_action=FirstRows(track),
        open_timeout_s=PATIENCE_S,
    )
    with robot:
        due = time.monotonic()
        while not told_to_stop(link, max(due - time.monotonic(), 0)):
            due = max(due + 1 / rate_hz, time.monotonic())
            scene.change()
            with suppress(EdgeflowError):  # a robot in HOLD keeps sending frames
                robot.push(scene.images, state={"state": scene.state.tolist()})
                if robot.latest().needs_reset:
                    robot.reset()
            if track.actions and not reported:
                reported = True
                link.send("acting")
        link.send(track)


def be_nice() -> None:
    """Lower the priority of this process, since real attackers use other machines."""
    os.nice(NICE)
