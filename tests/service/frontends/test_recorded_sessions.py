"""Sessions recorded from robots' own clients, played to a service: successes as recorded, errors as clients can use."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import msgpack
import pytest

from tests.recorded_sessions import recorded_checkpoint, recorded_session
from tests.service.frontends.robot_clients import openpi_robot, robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import serving

POSE = [0, -1.5, 1.5, 0, 0, 0]


@pytest.mark.oracle("wire")
@pytest.mark.parametrize("name", ["openpi/libero", "openpi/aloha"])
async def test_openpi(checkpoint, tmp_path: Path, name: str):
    session = recorded_session(name)
    script = stub_script(recorded_checkpoint(tmp_path / "stub", session))
    async with (
        serving(checkpoint, script, frontends__openpi__metadata={"reset_pose": POSE}) as served,
        openpi_robot(robots_address(served)) as robot,
    ):
        assert robot.metadata["reset_pose"] == msgpack.unpackb(session.greeting)["reset_pose"] == POSE
        replies = 0
        for each in session.exchanges:
            await robot.socket.send(each.request)
            reply = await robot.socket.recv()
            if each.actions is None:
                assert isinstance(reply, str) and "observation" in reply and "INPUT_MISSING" in reply, reply
                assert "\n" not in reply
                continue
            replies += 1
            found, recorded = msgpack.unpackb(reply), msgpack.unpackb(each.answer)
            assert found["actions"] == recorded["actions"]
            assert list(found["actions"]) == list(recorded["actions"])  # the order in which the original writes
            assert found.keys() == recorded.keys()
            assert found["policy_timing"].keys() == recorded["policy_timing"].keys()
            assert found["server_timing"].keys() >= recorded["server_timing"].keys()
            assert ("prev_total_ms" in found["server_timing"]) == (replies > 1)
            times = [*found["policy_timing"].values(), *found["server_timing"].values()]
            assert all(type(value) in (int, float) and value >= 0 for value in times)
        first = session.answered[0]
        await robot.socket.send(first.request)
        again = msgpack.unpackb(await robot.socket.recv())
        assert again["actions"] == msgpack.unpackb(first.answer)["actions"]


@pytest.mark.oracle("wire")
@pytest.mark.parametrize("name", ["openvla/openvla", "openvla/oft"])
async def test_act(checkpoint, tmp_path: Path, name: str):
    session = recorded_session(name)
    script = stub_script(recorded_checkpoint(tmp_path / "stub", session))
    async with (
        serving(checkpoint, script) as served,
        httpx.AsyncClient(base_url=f"http://{robots_address(served)}") as http,
    ):
        for each in session.exchanges:
            headers = {"content-type": "application/json"}
            answer = await http.post("/act", content=each.request, headers=headers)
            if each.actions is not None:
                assert (answer.status_code, answer.content) == (each.status, each.answer), answer.text
                assert answer.headers["content-type"] == "application/json"
                continue
            assert 400 <= answer.status_code < 500, answer.text
            error = json.loads(answer.content)["error"]
            assert error["field"] and error["field"] in error["message"]
