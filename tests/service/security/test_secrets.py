"""Secrets planted in tokens, text, metadata, pixels and paths show up in no log, metric, error or answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
from pathlib import Path

import grpc
import httpx
import pytest

from edgeflow.service.children import single_actions
from edgeflow.service.frontends.grpc import server as grpc_server
from edgeflow.service.worker.process import ENTRY
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import JPEG, WAIT_S, config, frame_message, open_message, serving
from tests.service.processes import ProcessLauncher
from tests.service.protected import Authority, call, outcome, robot_with, write_tokens
from tests.tiny_checkpoint import write_checkpoint

CANARY = "canary7f3a"
TOKEN, WRONG = f"{CANARY}-token", f"{CANARY}-wrong"
INSTRUCTION = f"grasp the {CANARY} handle"
METADATA = (("x-secret", f"{CANARY}-metadata"), ("user-id", f"{CANARY}\\n{{"))
PIXELS = (f"{CANARY}-pixels".encode() * 300)[: 32 * 24 * 3]
RAW = [pb.Camera(name="wrist", width=32, height=24, format=pb.IMAGE_FORMAT_RGB8)]


class ServiceOutput:
    """All that left the service by any way but the robot's own stream of actions."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, *values: object) -> None:
        self.texts += [value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in values]

    def hits(self) -> list[str]:
        needles = [CANARY, base64.b64encode(CANARY.encode())[:12].decode(), CANARY.encode().hex()]
        return [text for text in self.texts if any(needle in text for needle in needles)]


async def rejected_call(heard: ServiceOutput, stub, request: bytes, **options) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub(request, timeout=WAIT_S, **options)
    heard.add(caught.value.details(), caught.value.debug_error_string(), caught.value.trailing_metadata())
    return caught.value.code().name


def hostile_requests() -> dict[str, pb.ActRequest | bytes]:
    """One a way to fail, each with the canary where a program may want to quote it."""
    good = {"cameras": RAW, "instruction": INSTRUCTION}
    frame = frame_message(1, PIXELS)
    return {
        "unparsable": f"\\xff{CANARY}".encode(),
        "text-too-long": pb.ActRequest(open=open_message(cameras=RAW, instruction=INSTRUCTION * 1000), frame=frame),
        "text-control": pb.ActRequest(open=open_message(cameras=RAW, instruction=f"{CANARY}\n"), frame=frame),
        "model": pb.ActRequest(open=open_message(**good, model=f"../{CANARY}"), frame=frame),
        "statistics": pb.ActRequest(open=open_message(**good, unnorm_key=f"../{CANARY}"), frame=frame),
        "no-jpeg": pb.ActRequest(open=open_message(instruction=INSTRUCTION), frame=frame_message(1, PIXELS)),
        "cut-jpeg": pb.ActRequest(
            open=open_message(instruction=INSTRUCTION), frame=frame_message(1, JPEG[:200] + PIXELS)
        ),
        "size": pb.ActRequest(open=open_message(**good), frame=frame_message(1, PIXELS[:-1])),
        "checksum": pb.ActRequest(open=open_message(**good), frame=frame_message(1, PIXELS, crc32c=1)),
        "proprio": pb.ActRequest(open=open_message(**good), frame=frame_message(1, PIXELS, proprio=[1.0])),
    }


async def drive_grpc(served, heard: ServiceOutput) -> None:
    async with robot_with(served, Credentials(token=TOKEN)) as robot:
        await robot.open(cameras=RAW, instruction=INSTRUCTION)
        await robot.frame(1, PIXELS)
        await robot.action(1)
        await robot.send(f"\\xff{CANARY}".encode())
        await robot.frame(2, PIXELS[:-3])
        await robot.frame(3, PIXELS, instruction=f"{INSTRUCTION}\x07")
        await robot.status(3)
        heard.add(*robot.seen)
    shown = [("authorization", f"Bearer {TOKEN}"), *METADATA]
    stub = served.channel.unary_unary("/edgeflow.v1.Control/Act", request_serializer=bytes)
    for name, request in hostile_requests().items():
        data = request if isinstance(request, bytes) else request.SerializeToString()
        assert await rejected_call(heard, stub, data, metadata=shown) not in ("OK", "INTERNAL", "UNKNOWN"), name
    for value in (WRONG, f"{TOKEN} {CANARY}"):
        code = await rejected_call(heard, stub, b"", metadata=[("authorization", f"Bearer {value}"), *METADATA])
        assert code == "UNAUTHENTICATED"
    assert await call(served.channel, f"/edgeflow.v1.Control/{CANARY}") is grpc.StatusCode.UNAUTHENTICATED


async def drive_http(served, heard: ServiceOutput) -> None:
    good = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "x-secret": CANARY}
    image = base64.b64encode(PIXELS).decode()
    body = {"image": image, "format": "rgb8", "width": 32, "height": 24, "instruction": INSTRUCTION}
    async with httpx.AsyncClient(base_url=served.http) as http:
        answers = [await http.post("/v1/act", headers=good, json=body)]
        assert answers[0].status_code == 200, answers[0].text
        for changes in (
            {"instruction": f"{CANARY}\x07"},
            {"instruction": [CANARY]},
            {CANARY[:3]: 1, "image": CANARY},
            {"model": CANARY},
            {"format": CANARY},
            {"mode": CANARY},
            {"unnorm_key": CANARY},
            {"width": CANARY},
        ):
            answers.append(await http.post("/v1/act", headers=good, content=json.dumps({**body, **changes})))
        answers.append(await http.post("/v1/act", headers=good, content=f'{{"instruction": "{CANARY}'))
        answers.append(await http.post("/v1/act", headers=good | {"content-encoding": CANARY}, content=b""))
        answers.append(await http.post("/v1/act", headers=good | {"content-type": CANARY}, content=b"x"))
        answers.append(await http.post("/v1/act", headers=good | {"authorization": f"Bearer {WRONG}"}, json=body))
        answers += [await http.get(f"/{CANARY}"), await http.get("/metrics", params={"token": TOKEN})]
        admin = {"authorization": f"Bearer {CANARY}-boss"}
        paths = ("/metrics", "/v1/models", f"/{CANARY}", "/docs/api")
        answers += [await http.get(path, headers=admin) for path in paths]
    assert all(answer.status_code >= 400 for answer in answers[1:-4])
    heard.add(*(answer.text for answer in answers), *(answer.headers for answer in answers))


async def test_nothing_of_a_secret_is_heard_with_a_real_worker(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    model = write_checkpoint(tmp_path / f"{CANARY}-model")
    tokens = write_tokens(tmp_path / f"{CANARY}.json", (TOKEN, "arm-1", "control"), (f"{CANARY}-boss", "boss", "admin"))
    launcher = ProcessLauncher(config(model=str(model), alias="demo", mode="serial", chat__enabled=False), ENTRY)
    heard = ServiceOutput()
    async with serving(model, launcher, tokens_file=tokens, mode="serial") as served:
        await drive_grpc(served, heard)
        await drive_http(served, heard)
        async with robot_with(served, Credentials(token=TOKEN)) as robot:
            await robot.open(cameras=RAW, instruction=INSTRUCTION)
            os.kill(launcher.pids[-1], signal.SIGKILL)
            await robot.hold("WORKER_LOST")
            await robot.notice("worker_ready")
            heard.add(*robot.seen)
        write_tokens(Path(tokens), (TOKEN, "arm-1", "observe"))
        heard.add(served.log)
    heard.add(served.log, *capfd.readouterr())
    assert heard.hits() == []
    assert len(heard.texts) > 40 and any("auth_failed" in text for text in heard.texts)


async def test_a_bug_tells_nothing_of_what_it_was_about(
    checkpoint, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    async def bug(*_: object) -> None:
        raise ValueError(f"no such thing as {CANARY}")

    monkeypatch.setattr(grpc_server, "act_once", bug)
    monkeypatch.setattr(single_actions, "act_once", bug)
    heard = ServiceOutput()
    body = {"image": base64.b64encode(JPEG).decode(), "instruction": INSTRUCTION}
    single = pb.ActRequest(open=open_message(), frame=frame_message(1))
    async with serving(checkpoint, incidents=2) as served:
        stub = served.channel.unary_unary("/edgeflow.v1.Control/Act", request_serializer=bytes)
        assert await rejected_call(heard, stub, single.SerializeToString()) == "INTERNAL"
        async with httpx.AsyncClient(base_url=served.http) as http:
            answer = await http.post("/v1/act", json=body)
        assert (answer.status_code, "incident" in answer.text) == (500, True)
        heard.add(answer.text)
    heard.add(served.log, *capfd.readouterr())
    assert heard.hits() == []


async def test_bad_handshakes_reveal_nothing(checkpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    authority = Authority(tmp_path / CANARY)
    stranger = Authority(tmp_path / f"{CANARY}-other")
    cert, key = authority.issue("service")
    heard = ServiceOutput()
    async with serving(checkpoint, tls__cert=str(cert), tls__key=str(key)) as served:
        async with robot_with(served, Credentials(ca=stranger.ca, token=TOKEN)) as robot:
            assert await outcome(robot) == "UNAVAILABLE"
        for address in (served.service.status.grpc_address, served.http.removeprefix("https://")):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /{CANARY} HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode())
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                heard.add(await asyncio.wait_for(reader.read(), WAIT_S))
            writer.transport.abort()
    heard.add(served.log, *capfd.readouterr())
    assert heard.hits() == []


async def test_a_name_cannot_write_lines_of_the_log(checkpoint):
    """What a client says is escaped where it is logged at all."""
    forged = '\n{"event": "forged"}\n'
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        await call(served.channel, "/edgeflow.v1.Control/%0A%7B%22event%22%3A%20%22forged%22%7D")
        await http.get("/" + "%0A%7B%22event%22%3A%20%22forged%22%7D")
        stub = served.channel.unary_unary("/edgeflow.v1.Control/Act", request_serializer=bytes)
        for changes in ({"model": forged}, {"unnorm_key": forged}, {"instruction": forged}):
            request = pb.ActRequest(open=open_message(**changes), frame=frame_message(1))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub(request.SerializeToString(), timeout=WAIT_S)
        assert served.events("forged") == []
        assert all(line.startswith('{"time"') for line in served.log.splitlines())


def test_this_test_hears_a_secret():
    heard = ServiceOutput()
    heard.add("nothing", f"a line with {CANARY}", base64.b64encode(f"{CANARY} and more".encode()))
    assert len(heard.hits()) == 2
