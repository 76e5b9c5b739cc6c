"""Limits of the robots' websockets: sizes, time and memory of messages, clients that do not read or are gone."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack
from edgeflow.service.frontends.robots import OTHER_BYTES
from edgeflow.service.http import server, websocket
from tests.fuzz.websocket_frames import BINARY, CLOSE, CONTINUATION, LAST, PING, PONG, TEXT, frame, head
from tests.service.frontends.robot_clients import (
    OpenpiRobot,
    expected,
    observation,
    openpi_robot,
    robots_address,
    small_stub,
)
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import RunningService, eventually, serving

SMALL = {"limits__image_bytes": 8_192, "limits__cameras": 1}
MOST = 8_192 + OTHER_BYTES


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stub(tmp_path_factory.mktemp("stub"))


async def closing(robot: OpenpiRobot) -> tuple[int, str]:
    """How the server ends the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await robot.socket.recv()
    assert caught.value.rcvd is not None, caught.value
    return caught.value.rcvd.code, caught.value.rcvd.reason


def rejections(served: RunningService, limit: str) -> float:
    return served.metric("edgeflow_limit_rejections_total", limit=limit)


def partial(served: RunningService) -> int:
    connections = served.children.newest["robots"]._http._server.server_state.connections
    return max((each._bounds.partial_bytes for each in connections), default=0)


async def test_messages_beyond_the_limit_end_only_their_connection(checkpoint, stub: Path):
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
        parts = [head(1, BINARY ^ LAST), *[b"\0" + head(1, CONTINUATION)] * websocket.MOST_PARTS]
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


async def test_large_messages_of_an_address_share_a_limit(checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "MOST_PARTIAL_BYTES", 400_000)
    size = 80_000  # twice of which is more than the quarter that one address may have
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
    stub = small_stub(tmp_path, actions=100, horizon=300, high=1e4)
    async with serving(checkpoint, stub_script(stub), timing__slow_reader_ms=200) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            robot.socket.transport.pause_reading()
            for _ in range(200):
                if rejections(served, "slow_reader"):
                    break
                robot.socket.transport.write(frame(pack(observation(), ArrayCoding.OPENPI)))
                await asyncio.sleep(0.01)
            await eventually(lambda: rejections(served, "slow_reader") == 1)
            await eventually(lambda: len(served.children.newest["robots"]._websockets) == 1)
            assert (await other.act()).shape == (300, 100)
            robot.socket.transport.abort()


async def test_pings_are_bounded(checkpoint, stub: Path):
    ping = frame(b"x" * 125, PING)
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


async def test_unrequested_pongs_are_bounded(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub)) as served, openpi_robot(robots_address(served)) as robot:
        robot.socket.transport.write(frame(b"", PONG) * 1100)
        await eventually(lambda: rejections(served, "websocket_pings") == 1)
        with pytest.raises(ConnectionClosed):
            await robot.read()


async def test_a_client_that_vanishes_is_disconnected(checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PING_S", 0.1)
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as other:
            await robot.act()
            robot.socket.transport.pause_reading()
            await eventually(lambda: len(served.events("session_closed")) == 1)
            assert np.array_equal(await other.act(grey=8), expected(8))
            robot.socket.transport.abort()


GARBAGE: list[tuple[bytes, int]] = [
    (b"\xff" * 64, 1002),  # reserved bits
    (frame(b"\0" * 4, CONTINUATION | LAST), 1002),  # continues nothing
    (struct.pack("!BB", BINARY, 4) + b"\0" * 4, 1002),  # without a mask
    (frame(b"\xff" * 4, TEXT), 1007),  # text that is none
    (frame(b"\0" * 200, PING), 1002),  # a ping beyond its size
    (frame(b"\0" * 3, CLOSE), 1002),  # a code of closing that does not exist
]


async def test_garbage_ends_its_connection_and_nothing_else(checkpoint, stub: Path):
    rng = np.random.default_rng(3)
    async with serving(checkpoint, stub_script(stub), timing__http_body_ms=100) as served:
        address = robots_address(served)
        async with openpi_robot(address) as other:
            for data, code in GARBAGE:
                async with openpi_robot(address) as robot:
                    robot.socket.transport.write(data)
                    assert (await closing(robot))[0] == code
            for size in rng.integers(2, 400, 30):
                async with openpi_robot(address) as robot:
                    robot.socket.transport.write(rng.bytes(int(size)) + b"\xff" * 20)
                    with pytest.raises(ConnectionClosed):
                        while True:
                            reply = await robot.socket.recv()
                            assert isinstance(reply, str) and reply.startswith("REJECTED")
            assert np.array_equal(await other.act(grey=9), expected(9))
            await eventually(lambda: partial(served) == 0)
