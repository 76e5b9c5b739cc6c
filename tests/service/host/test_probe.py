"""`edgeflow health` against a running service: what an image's health check says, and when it says no."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys

import pytest

from edgeflow.config.service import load_config
from edgeflow.service.host.probe import probe
from edgeflow.service.observe.health import HealthState
from edgeflow_client.errors import ConfigError, Unavailable
from tests.service.harness import RunningService, serving
from tests.service.protected import Authority, write_tokens

TIMEOUT_S = 20.0


async def ask(served: RunningService) -> str:
    config = load_config(None, {"health.port": served.service.status.health_port})
    return await asyncio.to_thread(probe, config, TIMEOUT_S)


async def test_the_command_exits_with_0_where_the_service_is_ready_and_1_where_it_is_not(checkpoint, tmp_path):
    file = tmp_path / "config.json"
    async with serving(checkpoint) as served:
        file.write_text(json.dumps({"health": {"port": served.service.status.health_port}}))
        command = [sys.executable, "-m", "edgeflow.cli", "health", "--config", str(file)]
        while_up = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    after = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert (while_up.returncode, while_up.stdout) == (0, "ready\n")
    assert after.returncode == 1 and "no answer from 127.0.0.1" in after.stderr


async def test_a_service_that_lost_its_worker_is_not_ready(checkpoint):
    async with serving(checkpoint) as served:
        served.service.health.move(HealthState.DEGRADED)
        with pytest.raises(Unavailable, match="is degraded"):
            await ask(served)


async def test_it_needs_neither_token_nor_certificate(checkpoint, tmp_path):
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("service", "robot.example")
    tokens = write_tokens(tmp_path / "tokens.json", ("t" * 43, "arm-1", "control"))
    tls = {"tls__cert": str(cert), "tls__key": str(key), "tls__client_ca": str(authority.ca)}
    async with serving(checkpoint, tokens_file=tokens, **tls) as served:
        assert await ask(served) == "ready"


def test_port_zero_cannot_be_probed():
    with pytest.raises(ConfigError, match=r"health\.port"):
        probe(load_config(None, {"health.port": 0, "frontends.port": 0}), TIMEOUT_S)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-other\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]"])
async def test_another_service_on_the_port_is_reported(answer):
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="not come from an edgeflow service"):
            await asyncio.to_thread(probe, load_config(None, {"health.port": port}), TIMEOUT_S)


def test_a_service_on_every_address_is_probed_on_loopback(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    for host in ("0.0.0.0", "::"):
        with pytest.raises(Unavailable):
            probe(load_config(None, {"health.host": host}), TIMEOUT_S)
    assert asked == ["127.0.0.1", "::1"]
