"""Answers to the gateway: chunks of any length cross, and what cannot cross is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from edgeflow.contract import Chunk
from edgeflow.ipc.packets import MAX_PACKET_BYTES, Packets, close_all, packet_pair
from edgeflow.service.children import single_actions
from edgeflow.service.children.messages import CODING, ActDone, ActRejected, no_room
from edgeflow.service.children.single_actions import PACKET_NUMBERS, send_answer
from edgeflow.service.frontends.control import whole
from edgeflow.service.sessions.frames import ActionEvent
from edgeflow_client.types import MAX_CHUNK_NUMBERS, MAX_HORIZON, ActionSchema, Command
from tests.service.frontends.test_act import open_descriptors
from tests.service.harness import serving
from tests.service.http.test_http import JSON_BODY
from tests.service.scripted import Script

STEP_MS = 20.0


def schema(horizon: int, dims: int) -> ActionSchema:
    return ActionSchema(
        names=tuple(f"joint_{index}" for index in range(dims)),
        units=("rad",) * dims,
        low=(-1e6,) * dims,
        high=(1e6,) * dims,
        relative=(False,) * dims,
        horizon=horizon,
        step_ms=STEP_MS,
    )


def answer(horizon: int, dims: int = 1, **changes) -> ActDone:
    action = ActionEvent(
        epoch=1,
        command=Command.ACT,
        reason="",
        chunk=Chunk(tuple(0.1 * index for index in range(horizon * dims)), horizon, STEP_MS),
        valid_for_ms=1,
        max_age_ms=1,
        age_ns=1,
        server_ns=1,
    )
    return ActDone(7, replace(action, **changes), schema(horizon, dims))


@pytest.fixture
def ends() -> Iterator[tuple[Packets, Packets]]:
    ours, theirs = (Packets(sock, CODING) for sock in packet_pair())
    yield ours, theirs
    ours.close()
    theirs.close()


def received(end: Packets) -> ActDone | ActRejected:
    found = end.receive()
    assert found is not None
    message, descriptors = found
    try:
        return whole(message, descriptors) if isinstance(message, ActDone) else message
    finally:
        close_all(descriptors)


@pytest.mark.parametrize(
    ("horizon", "dims"),
    [
        (2, 7),
        (MAX_HORIZON, MAX_CHUNK_NUMBERS // MAX_HORIZON),
        (128, 256),
        (2, PACKET_NUMBERS // 2),
    ],
)
def test_every_permitted_chunk_crosses_exactly_and_leaves_no_descriptor(ends, horizon: int, dims: int):
    before = open_descriptors()
    done = answer(horizon, dims)
    send_answer(ends[0], done)
    assert received(ends[1]) == done
    assert open_descriptors() == before


def test_an_answer_that_does_not_fit_is_rejected(ends):
    send_answer(ends[0], answer(2, reason="x" * MAX_PACKET_BYTES))
    rejected = received(ends[1])
    assert isinstance(rejected, ActRejected) and (rejected.request, rejected.code) == (7, "RESOURCE_EXHAUSTED")


def test_a_long_chunk_without_memory_or_descriptors_is_rejected(ends, monkeypatch: pytest.MonkeyPatch):
    def full(_: bytes) -> int:
        raise OSError

    long = answer(MAX_HORIZON, 32)
    send_answer(ends[0], long)
    message, descriptors = ends[1].receive()
    close_all(descriptors)
    assert whole(message, []) is None
    rejected = no_room(7)
    monkeypatch.setattr(single_actions, "seal", full)
    send_answer(ends[0], long)
    assert received(ends[1]) == rejected


async def test_the_longest_chunk_reaches_a_client(checkpoint):
    wide = schema(MAX_HORIZON, MAX_CHUNK_NUMBERS // MAX_HORIZON)
    values = [0.1 * index for index in range(MAX_HORIZON * len(wide.names))]
    script = Script(values=lambda _: values, schema=wide)
    async with serving(checkpoint, script) as served, httpx.AsyncClient(base_url=served.http, timeout=60) as http:
        found = (await http.post("/v1/act", json=JSON_BODY)).json()
    assert [value for row in found["chunk"] for value in row] == values
    assert found["action"] == found["chunk"][0]
