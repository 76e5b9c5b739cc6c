"""Robots' own clients of tests: a websocket that speaks as openpi's clients do, and what they are answered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from tests.plugins.edgeflow_stub import answer
from tests.service.harness import WAIT_S, RunningService
from tests.stub_policy import stub_checkpoint

SIDE = 16
MANY = 1 << 20  # values of a message


def observation(grey: int = 0, prompt: str = "go", **changes: Any) -> dict[str, Any]:
    """An observation with one camera and a state of two numbers, which the stub policy answers by all of them."""
    image = np.full((SIDE, SIDE, 3), grey, np.uint8)
    return {"observation/image": image, "observation/state": np.zeros(2, np.float32), "prompt": prompt, **changes}


def small_stub(folder: Path, **changes: Any) -> Path:
    """A checkpoint of the stub policy that gets such observations."""
    shape: dict[str, Any] = {"cameras": {"image": None}, "state": {"state": 2}, "actions": 2, "horizon": 2}
    return stub_checkpoint(folder / "stub", **{**shape, "low": -100.0, "high": 100.0, **changes})


def expected(grey: int) -> np.ndarray:
    """The actions of this policy for an image of one grey; no two greys get the same."""
    image = np.full((SIDE, SIDE, 3), grey, np.uint8)
    found: np.ndarray = answer({"": image.tobytes()}, {"": [0.0, 0.0]}, 2, 2).astype(np.float32)
    return found


class OpenpiRobot:
    """One connection. metadata: as the server sent it first."""

    def __init__(self, socket: ClientConnection, metadata: Mapping[str, Any]) -> None:
        self.socket = socket
        self.metadata = metadata

    async def send(self, value: Any, coding: ArrayCoding = ArrayCoding.OPENPI) -> None:
        await self.socket.send(value if isinstance(value, bytes | str) else pack(value, coding))

    async def read(self) -> Any:
        """A reply: a value, or the text of a text frame."""
        reply = await self.socket.recv()
        return reply if isinstance(reply, str) else unpack(reply, MANY)[0]

    async def ask(self, value: Any, coding: ArrayCoding = ArrayCoding.OPENPI) -> Any:
        await self.send(value, coding)
        return await self.read()

    async def act(self, **changes: Any) -> np.ndarray:
        """The actions for an observation, which must get some."""
        reply = await self.ask(observation(**changes))
        assert isinstance(reply, dict), reply
        return reply["actions"]

    async def rejected(self, value: Any) -> str:
        """The line that an observation gets instead of actions."""
        reply = await self.ask(value)
        assert isinstance(reply, str) and "\n" not in reply and "Traceback" not in reply, reply
        return reply


def robots_address(served: RunningService) -> str:
    return served.service.status.robots_address


@contextlib.asynccontextmanager
async def openpi_robot(address: str, path: str = "/", scheme: str = "ws", **options: Any) -> AsyncIterator[OpenpiRobot]:
    """A robot that is connected and has its metadata."""
    options = {"compression": None, "max_size": None, "open_timeout": WAIT_S, "proxy": None, **options}
    async with connect(f"{scheme}://{address}{path}", **options) as socket:
        first = await socket.recv()
        assert isinstance(first, bytes), first
        yield OpenpiRobot(socket, unpack(first, MANY)[0])
