"""POST /act on the robots' port: each dialect's answer, and what gets no action."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edgeflow.service.frontends import control
from edgeflow.service.frontends.numpy_json import array_json
from tests.plugins.edgeflow_stub import NAN, answer
from tests.service.frontends.robot_clients import robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import RunningService, eventually, serving
from tests.stub_policy import stub_checkpoint

IMAGE = np.arange(12 * 16 * 3, dtype=np.uint32).reshape(12, 16, 3).astype(np.uint8)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_checkpoint(tmp_path_factory.mktemp("stub") / "stub", actions=2, horizon=3, low=-10.0, high=10.0)


def decoded(value: Any) -> np.ndarray:
    data = base64.b64decode(value["__numpy__"])
    found: np.ndarray = np.frombuffer(data, value["dtype"]).reshape(value["shape"])
    return found


def expected(image: np.ndarray = IMAGE) -> np.ndarray:
    return answer({"": image.tobytes()}, {}, 3, 2)


def client(served: RunningService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{robots_address(served)}", timeout=60)


async def test_each_dialect_gets_its_form(checkpoint, stub: Path):
    plain = {"image": IMAGE.tolist(), "instruction": "go"}
    async with serving(checkpoint, stub_script(stub)) as served, client(served) as http:
        found = await http.post("/act", json={"image": array_json(IMAGE), "instruction": "go", "unnorm_key": None})
        assert found.status_code == 200 and np.array_equal(decoded(found.json()), expected()[0])
        found = await http.post("/act", json=plain)
        assert np.array_equal(decoded(found.json()), expected()[0])
        found = await http.post("/act", json={"encoded": json.dumps(plain)})
        assert np.array_equal(decoded(json.loads(found.json())), expected()[0])
        body = {"full_image": array_json(IMAGE), "instruction": "go", "anything": {"else": 1}}
        rows = [decoded(row) for row in (await http.post("/act", json=body)).json()]
        assert np.array_equal(rows, expected()) and {row.dtype.str for row in rows} == {"<f8"}
        observation = {"video.top": array_json(IMAGE[None]), "state.arm": [[0.5, 1.0]], "annotation.human.task": ["go"]}
        parts = (await http.post("/act", json={"observation": observation})).json()
        assert parts.keys() == {"action.arm"} and np.array_equal(decoded(parts["action.arm"]), expected())
        assert not served.service.plane._runners
        assert (await http.get("/healthz")).text == "OK\n"


async def test_an_answer_without_an_action_is_an_object_that_no_client_executes(checkpoint, stub: Path):
    right = {"image": array_json(IMAGE), "instruction": "go"}
    bad: list[tuple[Any, int, str]] = [
        ({**right, "instruction": NAN}, 503, ""),
        ({"encoded": json.dumps({**right, "instruction": NAN})}, 503, ""),
        ({**right, "instruction": ""}, 400, "instruction"),
        ({**right, "image": array_json(IMAGE.astype(np.float32))}, 400, "image"),
        ({**right, "image": array_json(IMAGE[..., :2])}, 400, "image"),
        ({**right, "image": array_json(np.zeros((1000, 400, 3), np.uint8))}, 400, "image"),
        ({**right, "image": {**array_json(IMAGE), "dtype": "|O"}}, 400, "image"),
        ({**right, "full_image": array_json(IMAGE)}, 400, "full_image"),
        ({**right, "state": [1.0]}, 400, "state"),
        ({"instruction": "go"}, 400, "image"),
        ([right], 400, "body"),
        ("text", 400, "body"),
    ]
    async with serving(checkpoint, stub_script(stub)) as served, client(served) as http:
        for body, status, field in bad:
            found = await http.post("/act", json=body)
            assert found.status_code == status, (body if isinstance(body, str) else "", found.text)
            error = found.json()["error"]
            assert error["field"] == field and "Traceback" not in error["message"], error
        assert (await http.get("/act")).status_code == 405
        assert (await http.post("/act", content=b"x" * (9 << 20))).status_code == 413
        assert (await http.post("/v1/act", json=right)).status_code == 404
        assert np.array_equal(decoded((await http.post("/act", json=right)).json()), expected()[0])


async def test_requests_end_with_their_client_with_the_worker_and_in_time(
    checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "SLACK_S", 0.05)
    script = stub_script(stub)
    body = {"image": array_json(IMAGE), "instruction": "go"}
    async with serving(checkpoint, script, timing__act_timeout_ms=1_000) as served:
        script.hold = True
        async with client(served) as http:
            asking = asyncio.create_task(http.post("/act", json=body))
            await eventually(lambda: bool(script.worker.held))
            asking.cancel()
        await eventually(lambda: len(served.events("session_closed")) == 1)
        async with client(served) as http:
            late = await http.post("/act", json=body)
            assert late.status_code == 504 and late.json()["error"]["code"] == "DEADLINE_EXCEEDED"
            asking = asyncio.create_task(http.post("/act", json=body))
            await eventually(lambda: len(script.worker.submitted()) == 3)
            script.worker.kill()
            lost = await asking
            assert lost.status_code == 503 and lost.json()["error"]["code"] == "UNAVAILABLE"
            script.hold = False
            await eventually(lambda: served.service.plane.worker is not None)
            while (found := await http.post("/act", json=body)).status_code == 503:
                await asyncio.sleep(0.01)
            assert np.array_equal(decoded(found.json()), expected()[0])
