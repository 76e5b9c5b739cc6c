"""Limits of the robots' websockets: sizes, time and memory of messages, clients that do not read or are gone."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack
from edgeflow.service.frontends.robots import OTHER_BYTES
from edgeflow.service.http import server, websocket
from tests.service.frontends.robot_clients import OpenpiRobot, observation, openpi_robot, robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.frontends.test_robot_sessions import expected, made
from tests.service.harness import Served, eventually, serving

CONTINUATION, BINARY = 0, 2
SMALL = {"limits__image_bytes": 8_192, "limits__cameras": 1}
MOST = 8_192 + OTHER_BYTES


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("stub"))


def head(size: int, opcode: int = BINARY, *, last: bool = True) -> bytes:
    """The beginning of a client's frame of this size; a mask of zeros leaves its bytes as they are."""
    return struct.pack("!BBQ", opcode | 0x80 * last, 0xFF, size) + b"\0" * 4


async def closing(robot: OpenpiRobot) -> tuple[int, str]:
    """How the server ends the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await robot.socket.recv()
    assert caught.value.rcvd is not None, caught.value
    return caught.value.rcvd.code, caught.value.rcvd.reason


def rejections(served: Served, limit: str) -> float:
    return served.metric("edgeflow_limit_rejections_total", limit=limit)


def partial(served: Served) -> int:
    connections = served.children.newest["robots"]._http._server.server_state.connections
    return max((each._bounds.partial_bytes for each in connections), default=0)


async def test_messages_beyond_the_limit_end_their_connection_alone(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), **SMALL) as served:
        address = robots_address(served)
        async with openpi_robot(address) as other:
            for parts in ([b"\0" * (MOST + 1)], [b"\0" * 40_000] * 2):
                async with openpi_robot(address) as robot:
                    await robot.act()
                    await robot.socket.send(parts if len(parts) > 1 else parts[0])
                    code, reason = await closing(robot)
                    assert code == 1009 and str(MOST) in reason
            async with openpi_robot(address) as robot:
                robot.socket.transport.write(head(1 << 40))  # announced, and never sent
                assert (await closing(robot))[0] == 1009
            assert np.array_equal(await other.act(grey=2), expected(2))


async def test_messages_may_come_in_parts_but_not_in_many(checkpoint, stub: Path):
    message = pack(observation(grey=7), ArrayCoding.OPENPI)
    async with serving(checkpoint, stub_script(stub)) as served, openpi_robot(robots_address(served)) as robot:
        for size in (100, 400, 10_000):
            await robot.socket.send([message[at : at + size] for at in range(0, len(message), size)])
            assert np.array_equal((await robot.read())["actions"], expected(7))
        parts = [head(1, BINARY, last=False), *[b"\0" + head(1, CONTINUATION, last=False)] * websocket.MOST_PARTS]
        half = len(parts) // 2
        robot.socket.transport.write(b"".join(parts[:half]))
        await eventually(lambda: partial(served) >= half - 1)  # what comes at once is read at once
        robot.socket.transport.write(b"".join(parts[half:]) + b"\0")
        assert await closing(robot) == (1009, f"a message of more than {websocket.MOST_PARTS} parts")
        assert rejections(served, "websocket_parts") == 1


async def test_a_message_that_trickles_in_is_cut(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), timing__http_body_ms=200) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            await other.act()
            robot.socket.transport.write(head(50_000))
            ended = asyncio.create_task(closing(robot))
            while not ended.done() and not rejections(served, "websocket_message_ms"):
                robot.socket.transport.write(b"\0")
                await asyncio.sleep(0.01)
            await ended
            assert ended.result() == (1013, "the rest of a message did not arrive in time")
            assert rejections(served, "websocket_message_ms") == 1
            assert np.array_equal(await other.act(grey=3), expected(3)), "silence between messages is no trickle"
            await eventually(lambda: partial(served) == 0)


async def test_large_messages_of_all_share_a_limit(checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "MOST_PARTIAL_BYTES", 100_000)
    size = 80_000
    message = pack(observation(grey=1, note=b"\0" * size), ArrayCoding.OPENPI)
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as first, openpi_robot(address) as second:
            first.socket.transport.write(head(len(message)) + message[:size])
            await eventually(lambda: partial(served) >= size)
            second.socket.transport.write(head(len(message)) + message[:size])
            assert await closing(second) == (1013, "other large messages are being read")
            first.socket.transport.write(message[size:])
            assert np.array_equal((await first.read())["actions"], expected(1))
            assert partial(served) == 0
        async with openpi_robot(address) as third:
            third.socket.transport.write(head(len(message)) + message[:size])
            await eventually(lambda: partial(served) >= size)
            third.socket.transport.abort()
        async with openpi_robot(address) as fourth:
            await eventually(lambda: partial(served) == 0)
            assert np.array_equal(await fourth.act(grey=4), expected(4))


async def test_a_client_that_does_not_read_is_ended(checkpoint, tmp_path: Path):
    stub = made(tmp_path, actions=100, horizon=300, high=1e4)
    async with serving(checkpoint, stub_script(stub), timing__slow_reader_ms=200) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            robot.socket.transport.pause_reading()
            for _ in range(200):
                if rejections(served, "slow_reader"):
                    break
                robot.socket.transport.write(_frame(pack(observation(), ArrayCoding.OPENPI)))
                await asyncio.sleep(0.01)
            await eventually(lambda: rejections(served, "slow_reader") == 1)
            await eventually(lambda: len(served.children.newest["robots"]._websockets) == 1)
            assert (await other.act()).shape == (300, 100)
            robot.socket.transport.abort()


def _frame(message: bytes) -> bytes:
    return head(len(message)) + message


async def test_pings_are_bounded(checkpoint, stub: Path):
    ping = struct.pack("!BB", 0x89, 0xFD) + b"\0" * 4 + b"x" * 125
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            robot.socket.transport.write(ping * 900)
            assert np.array_equal(await robot.act(grey=1), expected(1))
            robot.socket.transport.write(ping * 20_000)
            await eventually(lambda: rejections(served, "websocket_pings") == 1)
            with pytest.raises(ConnectionClosed):  # what is still on its way may reset it
                await robot.read()
            assert np.array_equal(await other.act(grey=2), expected(2))


async def test_a_client_that_is_gone_without_a_word_is_ended(checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PING_S", 0.1)
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            await robot.act()
            robot.socket.transport.pause_reading()
            await eventually(lambda: len(served.events("session_closed")) == 1)
            assert np.array_equal(await other.act(grey=8), expected(8))
            robot.socket.transport.abort()


GARBAGE: list[bytes] = [
    b"\xff" * 64,  # reserved bits
    head(4, CONTINUATION) + b"\0" * 4,  # continues nothing
    struct.pack("!BB", 0x82, 4) + b"\0" * 4,  # without a mask
    head(4, 1) + b"\xff\xff\xff\xff",  # text that is none
    head(200, 9) + b"\0" * 200,  # a ping beyond its size
    head(3, 8) + b"\0\0\0",  # a code of closing that does not exist
]


@pytest.mark.parametrize("count", [30])
async def test_garbage_ends_its_connection_and_nothing_else(checkpoint, stub: Path, count: int):
    rng = np.random.default_rng(3)
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as other:
            for data in [*GARBAGE, *(rng.bytes(int(size)) for size in rng.integers(2, 400, count))]:
                async with openpi_robot(address) as robot:
                    robot.socket.transport.write(data)
                    robot.socket.transport.write(b"\xff" * 20)
                    done: Any = None
                    while done is None:
                        try:
                            reply = await asyncio.wait_for(robot.socket.recv(), 0.05)
                            assert isinstance(reply, str) and "REJECTED" in reply
                        except (ConnectionClosed, asyncio.TimeoutError) as error:
                            done = error
                    robot.socket.transport.abort()
            assert np.array_equal(await other.act(grey=9), expected(9))
            await eventually(lambda: partial(served) == 0)
