"""Who may connect to the robots' port: tokens, networks without tokens, host names, capacity, TLS."""

from __future__ import annotations

import contextlib
import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from edgeflow.service import app
from edgeflow_client.errors import ConfigError
from tests.service.frontends.robot_clients import (
    expected,
    openpi_robot,
    robots_address,
    small_stub,
)
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import RunningService, config, eventually, serving
from tests.service.protected import Authority, write_tokens

ROBOT, CHAT = ("robot-token", "arm", "control"), ("chat-token", "people", "chat")
ACT = {"image": np.zeros((16, 16, 3), int).tolist(), "instruction": "go"}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def hurried_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FILES_S", 0.02)


async def rejected(address: str, path: str = "/", scheme: str = "ws", **options: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error with which an upgrade is rejected."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"{scheme}://{address}{path}", compression=None, proxy=None, **options):
            pass
    response = caught.value.response
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = json.loads(response.body)["error"]
    return response.status_code, found


def shown(token: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"authorization": f"{scheme} {token}"}


async def posted(served: RunningService, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{robots_address(served)}") as http:
        return await http.post("/act", json=ACT, headers=headers)


async def test_tokens(checkpoint, stub: Path, tmp_path: Path, hurried_files: None):
    tokens = write_tokens(tmp_path / "tokens.json", ROBOT, CHAT)
    async with serving(checkpoint, stub_script(stub), tokens_file=tokens) as served:
        address = robots_address(served)
        for path in ("/", "/openpi/policy", "/v1/realtime/robot/openpi"):
            status, error = await rejected(address, path)
            assert (status, error["code"], error["field"]) == (401, "UNAUTHENTICATED", "authorization")
        for headers, wanted in ((shown("wrong"), 401), (shown("chat-token"), 403)):
            status, error = await rejected(address, additional_headers=headers)
            assert (status, error["field"]) == (wanted, "authorization")
            assert (await posted(served, headers)).status_code == wanted
        assert (await posted(served)).status_code == 401
        assert (await rejected(address, "/nothing"))[0] == 401
        async with contextlib.AsyncExitStack() as robots:
            first, second = [
                await robots.enter_async_context(openpi_robot(address, additional_headers=shown("robot-token", scheme)))
                for scheme in ("Api-Key", "Bearer")
            ]
            assert np.array_equal(await first.act(grey=1), expected(1))
            write_tokens(tmp_path / "tokens.json", CHAT)
            for robot in (first, second):
                with pytest.raises(ConnectionClosed) as closed:
                    await robot.read()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
            await eventually(lambda: not served.service.plane._runners)
        assert (await rejected(address, additional_headers=shown("robot-token")))[0] == 401


async def test_networks_without_tokens(checkpoint, stub: Path, tmp_path: Path, hurried_files: None):
    tokens = write_tokens(tmp_path / "tokens.json", ROBOT)
    settings = {"tokens_file": tokens, "frontends__openpi__peers": ["127.0.0.0/8"]}
    async with serving(checkpoint, stub_script(stub), **settings) as served:
        address = robots_address(served)
        assert any("frontends.openpi.peers: 127.0.0.0/8" in each["text"] for each in served.events("warning"))
        assert (await posted(served)).status_code == 401, "of openpi's clients alone"
        assert (await rejected(address, additional_headers=shown("wrong")))[0] == 401
        async with openpi_robot(address) as robot:
            assert np.array_equal(await robot.act(grey=1), expected(1))
            write_tokens(tmp_path / "tokens.json", ROBOT, CHAT)
            await eventually(lambda: len(served.events("tokens_read")) == 1)
            async with openpi_robot(address, additional_headers=shown("robot-token")) as other:
                assert np.array_equal(await other.act(grey=2), expected(2))
            assert np.array_equal(await robot.act(grey=3), expected(3))


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "127.0.0.1/8", "robots", ""])
def test_a_network_is_one_of_robots(network: str):
    with pytest.raises(ConfigError, match=r"frontends\.openpi\.peers"):
        config(frontends__openpi__peers=[network])


@pytest.mark.parametrize("value", [1 << 70, "\ud800", {"a": [object()]}])
def test_metadata_is_such_that_it_can_be_sent(value: Any):
    with pytest.raises(ConfigError, match=r"frontends\.openpi\.metadata"):
        config(frontends__openpi__metadata={"reset_pose": value})


async def test_hosts_and_origins(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), http__names=["arm.lab"]) as served:
        address = robots_address(served)
        host, port = address.split(":")
        status, error = await rejected(f"evil.example:{port}", host=host, port=int(port))
        assert (status, error["field"]) == (403, "host")
        status, error = await rejected(address, origin="http://evil.example")
        assert (status, error["field"]) == (403, "origin")
        async with openpi_robot(f"arm.lab:{port}", host=host, port=int(port)) as robot:
            assert np.array_equal(await robot.act(), expected(0))
        async with openpi_robot(address, origin=f"http://{address}") as robot:
            assert np.array_equal(await robot.act(), expected(0))


async def test_heads_and_paths(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        for headers in (
            {f"x-{index}": "1" for index in range(70)},
            {f"x-{index}": "1" for index in range(150)},
            {"x": "y" * 9_000},
            {"x": "y" * 15_000},
            {"x": "y" * 20_000},
        ):
            status, error = await rejected(address, additional_headers=headers)
            assert (status, error["code"]) == (431, "RESOURCE_EXHAUSTED")
        status, error = await rejected(address, "/v1/realtime/robot/other")
        assert (status, error["field"]) == (404, "path") and "/v1/realtime/robot/openpi" in error["message"]


async def test_a_websocket_that_ends_no_longer_counts_for_its_address(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), limits__http_connections_per_address=2) as served:
        address = robots_address(served)
        front = served.children.newest["robots"]
        for _ in range(3):
            async with openpi_robot(address) as one, openpi_robot(address) as two:
                with pytest.raises(InvalidStatus) as caught:
                    async with connect(f"ws://{address}/", compression=None, proxy=None):
                        pass
                assert caught.value.response.status_code == 429
                assert np.array_equal(await one.act(grey=1), expected(1))
                two.socket.transport.abort()
            await eventually(lambda: not front._websockets)


async def test_tls(checkpoint, stub: Path, tmp_path: Path):
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("service")
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    async with serving(checkpoint, stub_script(stub), tls__cert=str(cert), tls__key=str(key)) as served:
        address = robots_address(served)
        async with openpi_robot(address, scheme="wss", ssl=trusted) as robot:
            assert np.array_equal(await robot.act(grey=9), expected(9))
        with pytest.raises((ssl.SSLError, OSError)):
            async with connect(f"wss://{address}/", ssl=ssl.create_default_context(), proxy=None):
                pass
        with pytest.raises((WebSocketException, EOFError, OSError)):
            async with connect(f"ws://{address}/", proxy=None):
                pass
        async with httpx.AsyncClient(base_url=f"https://{address}", verify=trusted) as http:
            clients = (await http.get("/")).json()
            assert clients["openpi"]["address"] == f"wss://{address}/"
