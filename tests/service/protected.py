"""What tests of protected services need: certificates, tokens, channels that show them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import datetime
from pathlib import Path

import grpc
import trustme

from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow.service.security.auth import digest
from edgeflow_client.connection.credentials import Credentials, channel
from tests.service.harness import WAIT_S, RunningService, WireRobot

HOSTS = ("localhost", "127.0.0.1")
OVERTAKEN = "Internal error from Core"  # grpc.aio's own word, where a rejection is there before its first write


class Authority:
    """A CA of one test, and what it signs, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, **options: datetime) -> tuple[Path, Path]:
        """Certificate and private key; the same name replaces both."""
        leaf = self._ca.issue_cert(*(hosts or HOSTS), **options)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        key.chmod(0o600)
        return cert, key


def write_tokens(path: Path, *entries: tuple, **expires: str) -> str:
    """entries: (token, principal, roles ...). expires: by principal. The path as the configuration wants it."""
    values = []
    for token, principal, *roles in entries:
        value = {"principal": principal, "sha256": digest(token), "roles": roles}
        values.append(value | ({"expires": expires[principal]} if principal in expires else {}))
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(values))
    partial.chmod(0o600)
    partial.replace(path)
    return str(path)


@contextlib.asynccontextmanager
async def robot_with(served: RunningService, credentials: Credentials | None):
    """A raw robot that shows its credentials."""
    async with channel(served.service.status.grpc_address, credentials, (), aio=True) as opened:
        yield served.robot(opened)


async def outcome(robot: WireRobot, **changes) -> str:
    """OK, or the status that opening a session ends with, as the service sent it."""
    while True:
        try:
            await robot.open(**changes)
        except (AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if await robot.call.details() != OVERTAKEN:
                return (await robot.call.code()).name
            robot.connect()
        else:
            return "OK"


async def call(
    opened: grpc.aio.Channel, method: str, request: bytes = b"", attempts: list[str] | None = None
) -> grpc.StatusCode:
    """The status of a call, whatever its kind: on the wire all look alike. attempts: takes the method of each try."""
    begin = opened.stream_stream(method, request_serializer=bytes, response_deserializer=bytes)
    while True:
        stream = begin(timeout=WAIT_S)
        if attempts is not None:
            attempts.append(method)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stream.write(request)
            await stream.done_writing()
            async for _ in stream:
                pass
        if await stream.details() != OVERTAKEN:
            return await stream.code()


CONTROL_STREAM = f"/{SERVICE}/Stream"
