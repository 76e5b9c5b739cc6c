"""POST /v1/act with several cameras and state, answered by a chunk; what a policy needs, as clients learn it."""

from __future__ import annotations

import base64
import gc
import os
from pathlib import Path

import httpx
import msgpack
import numpy as np
import pytest

from edgeflow.ipc.packets import Packets
from tests.service.frontends.grpc.test_observations import HORIZON, ROWS, SIZES, STEP_MS, picture, wide_script
from tests.service.harness import RunningService, serving

STATE = {"gripper": 0.5, "state": [1.25, -0.25]}


def body(*names: str) -> dict:
    """Each camera shows its own grey; JPEG but for the spare one."""
    images = {name: picture(name, 50 * list(SIZES).index(name)) for name in names or SIZES}
    if "spare" in images:
        images["spare"] = {"data": bytes(8 * 8 * 3), "format": "rgb8", "width": 8, "height": 8}
    return {"images": images, "instruction": "go", "state": STATE}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def post(served: RunningService, content: dict) -> httpx.Response:
    async with httpx.AsyncClient(base_url=served.http) as http:
        headers = {"content-type": "application/msgpack"}
        return await http.post("/v1/act", content=msgpack.packb(content), headers=headers)


async def test_images_and_state_reach_the_policy_and_a_chunk_comes_back(checkpoint):
    async with serving(checkpoint, wide_script()) as served:
        answer = await post(served, body())
        assert answer.status_code == 200, answer.text
        content = msgpack.unpackb(answer.content)
        assert np.array_equal(content["chunk"], ROWS) and content["action"] == ROWS[0]
        assert content["step_ms"] == content["schema"]["step_ms"] == STEP_MS
        assert content["schema"]["horizon"] == HORIZON
        (frame,) = served.script.worker.submitted()
        assert frame.state == [1.25, -0.25] and frame.sizes == [16, 24, 24, 8, 8, 16]
        levels = [np.unique(np.frombuffer(image.data, np.uint8)).tolist() for image in frame.images()]
        assert levels == [[50], [150], [0]]


async def test_json_carries_the_same(checkpoint):
    async with serving(checkpoint, wide_script()) as served, httpx.AsyncClient(base_url=served.http) as http:
        images = {name: base64.b64encode(picture(name, 9)).decode() for name in SIZES}
        answer = await http.post("/v1/act", json=body() | {"images": images})
        assert answer.status_code == 200 and np.array_equal(answer.json()["chunk"], ROWS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"images": {}}, "image"),
        ({"image": picture("top", 1)}, "images"),
        ({"width": 8}, "width"),
        ({"format": "jpeg"}, "format"),
        ({"images": {"top": b"text"}}, "images.top"),
        ({"images": {"top": {"data": b"", "other": 1}}}, "images.top.other"),
        ({"images": {"top": {"format": "rgb8"}}}, "images.top.data"),
        ({"images": {str(index): b"x" for index in range(17)}}, "images"),
        ({"images": {"top": 1}}, "images.top"),
        ({"proprio": {"a": 1.0}}, "state"),
        ({"state": {"state": [1.0, "x"]}}, "state.state"),
        ({"state": {"state": [True]}}, "state.state"),
        ({"state": {"state": None}}, "state.state"),
        ({"state": {"state": [0.0] * 4097}}, "state"),
        ({"state": {"state": []}}, "open.state[0].size"),
        ({"state": {"state": [0.0] * 257}}, "open.state"),
        ({"state": {"state": [1e300, 0.0]}}, "frame.proprio[0]"),
        ({"state": {"state": [1.0]}}, "open.state"),
        ({"state": {}}, "open.state"),
        ({"images": {name: picture(name, 1) for name in ("top", "left")}}, "open.cameras"),
    ],
)
async def test_a_bad_observation_names_the_field(checkpoint, changes: dict, field: str):
    async with serving(checkpoint, wide_script()) as served:
        answer = await post(served, body() | changes)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["field"] == field
        assert served.script.worker.submitted() == []


async def test_several_images_may_be_larger_together_than_one(checkpoint):
    spare = {"data": bytes(40 * 40 * 3), "format": "rgb8", "width": 40, "height": 40}
    big = {"top": spare, "left": spare, "wrist": spare}
    async with serving(checkpoint, wide_script(), limits__image_bytes=5_000, limits__cameras=3) as served:
        assert (await post(served, body() | {"images": big})).status_code == 200
        assert (await post(served, body() | {"images": big | {"x": bytes(100_000)}})).status_code == 413


async def test_pixels_are_decoded_into_the_memory_that_crosses_and_no_descriptor_stays_open(checkpoint, monkeypatch):
    """What the gateway sends is the descriptor of the memory that the decoder filled; control unmaps it afterwards."""
    sent = []
    send = Packets.send

    def remembering(self, message, descriptors=()):
        if type(message).__name__ == "Act":
            sent.extend(os.fstat(each).st_size for each in descriptors)
        return send(self, message, descriptors)

    monkeypatch.setattr(Packets, "send", remembering)
    async with serving(checkpoint, wide_script()) as served:
        await post(served, body())
        gc.collect()
        before = open_descriptors()
        for _ in range(8):
            assert (await post(served, body())).status_code == 200
            assert (await post(served, body() | {"state": {}})).status_code == 400
        gc.collect()
        assert open_descriptors() <= before
        assert sent == [3 * (24 * 16 + 8 * 24 + 16 * 8)] * 9


async def test_models_tell_what_the_policy_needs(checkpoint):
    async with serving(checkpoint, wide_script()) as served, httpx.AsyncClient(base_url=served.http) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert [camera["name"].split(".")[-1] for camera in model["cameras"]] == ["top", "left", "wrist"]
        assert model["cameras"][0] == {"name": "observation.images.top", "width": None, "height": None, "named": True}
        expected = {"name": "observation.state", "size": 2, "elements": ["shoulder", "elbow"], "units": ["rad", "rad"]}
        assert model["state"] == [expected]
        assert (model["horizon"], model["step_ms"]) == (HORIZON, STEP_MS)
