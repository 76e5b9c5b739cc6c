"""Operators over HTTP: what each robot of each front end gets, who may act, and what is rejected."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from edgeflow.ipc.messages import ChangePace
from edgeflow.service.children.start import GATEWAY
from edgeflow.service.gateway.gateway import Gateway
from edgeflow.service.gateway.operators import AT_ONCE
from edgeflow.service.sessions.admission import OVERHEAD_NS
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.frontends.robot_clients import observation, openpi_robot, robots_address, small_stub
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import HEIGHT, JPEG, WIDTH, RunningService, eventually, serving
from tests.service.protected import robot_with, write_tokens
from tests.service.scripted import Script

SESSIONS = "/admin/v1/sessions"
MS = 1_000_000
BOSS, ARM = "boss-token", "arm-token"


def client(served: RunningService, token: str = "") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=served.http, headers=headers)


async def act(http: httpx.AsyncClient, session: int, action: str, **body: Any) -> dict[str, Any]:
    """The status of a session after an action."""
    answer = await http.post(f"{SESSIONS}/{session}/{action}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def rejected(http: httpx.AsyncClient, path: str, **options: Any) -> tuple[int, str, str]:
    """Status, code and field of a rejection."""
    answer = await http.post(f"{SESSIONS}/{path}", **options)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["field"]


async def test_a_robot_is_held_and_goes_on(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await robot.action(1)
        (listed,) = (await http.get(SESSIONS)).json()["sessions"]
        assert (listed["session"], listed["status"]["state"], listed["status"]["operator"]) == (1, "acting", None)
        status = await act(http, 1, "hold", reason="door open")
        assert (status["state"], status["reason"]) == ("hold", "OPERATOR_HOLD")
        assert status["operator"]["reason"] == "door open" and status["operator"]["since"] > 0
        assert (await robot.notice("held")).text == "door open"
        await robot.hold("OPERATOR_HOLD")
        await robot.frame(2)
        dropped = await robot.status(2)
        assert (dropped.disposition, dropped.reason) == (pb.DISPOSITION_DROPPED, "OPERATOR_HOLD")
        await act(http, 1, "hold")
        assert (await act(http, 1, "resume"))["operator"] is None
        await robot.notice("resumed")
        await robot.frame(3)
        await robot.action(3)
        assert await rejected(http, "1/resume") == (400, "FAILED_PRECONDITION", "")
        assert served.metric("edgeflow_safe_action_total", reason="OPERATOR_HOLD") == 2


async def test_an_instruction_begins_an_epoch_and_is_not_logged(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        robot = served.robot()
        await robot.open()
        status = await act(http, 1, "instruct", instruction="grasp the ring")
        assert (status["epoch"], status["instruction"]) == (2, "grasp the ring")
        await robot.notice("epoch")
        await robot.frame(1)
        assert (await robot.action(1)).epoch == 2
        assert served.script.worker.submitted()[-1].instruction == "grasp the ring"
        (line,) = served.events("operator")
        assert (line["action"], line["session"], line["peer"]) == ("instruct", 1, "127.0.0.1")
        assert "ring" not in served.log


async def test_another_mode_reaches_the_worker_with_the_age_that_frames_may_get(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SERIAL, max_action_age_ms=1_000)
        status = await act(http, 1, "mode", mode="speculative", max_passes=2)
        assert (status["mode"], status["pace"]) == ("speculative", "speculative, at most 2 passes")
        assert "serial" in (await robot.notice("mode")).text
        changes = [each for each in served.script.worker.seen if isinstance(each, ChangePace)]
        assert [each.patience_ns for each in changes] == [1_000 * MS - OVERHEAD_NS]
        status = await act(http, 1, "mode", mode="depth", depth=2)
        assert status["mode"] == "depth"
        assert await rejected(http, "1/mode", json={"mode": "depth", "depth": 99}) == (400, "INVALID_ARGUMENT", "depth")
        assert await rejected(http, "1/mode", json={"mode": "fast"}) == (400, "INVALID_ARGUMENT", "mode")
        assert await rejected(http, "1/mode", json={"mode": "serial", "depth": 2}) == (400, "INVALID_ARGUMENT", "depth")
        assert (await http.get(SESSIONS)).json()["sessions"][0]["status"]["mode"] == "depth", "nothing changed"


async def test_an_ended_session_says_who_ended_it(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        robot = served.robot()
        await robot.open()
        assert (await act(http, 1, "end", reason="lunch"))["reason"] == "OPERATOR_ENDED"
        await robot.hold("OPERATOR_ENDED")
        code, text = await robot.rest()
        assert (code, text) == (grpc.StatusCode.ABORTED, "an operator ended the session: lunch")
        assert served.events("session_closed")[-1]["reason"] == "operator_ended"
        assert await rejected(http, "1/hold") == (404, "NOT_FOUND", "session")


async def test_a_session_that_ends_while_its_mode_changes_is_answered(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        robot = served.robot()
        await robot.open()
        plane = served.service.plane
        async with plane._planner._planning:  # another plan takes its time
            changing = asyncio.create_task(http.post(f"{SESSIONS}/1/mode", json={"mode": "serial"}))
            await eventually(lambda: any(each.get_name() == "change-mode" for each in asyncio.all_tasks()))
            assert (await rejected(http, "1/mode", json={"mode": "auto"}))[1] == "RESOURCE_EXHAUSTED"
            assert (await act(http, 1, "hold"))["reason"] == "OPERATOR_HOLD", "a hold waits for nothing"
            await act(http, 1, "end")
            await robot.rest()
        answer = await changing
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("9/hold", b"{}", 404, "session"),
        ("x/hold", b"{}", 404, "session"),
        ("99999999999999999999999/hold", b"{}", 404, "session"),
        pytest.param("0" * 5000 + "/hold", b"{}", 404, "session", id="digits"),
        ("1/hold", b'{"reason": "\\ud800"}', 400, "body"),
        ("1/hold", b'{"reason": "a\\u0007"}', 400, "reason"),
        ("1/hold", b'{"reason": "' + b"a" * 201 + b'"}', 400, "reason"),
        ("1/hold", b'{"why": ""}', 400, "why"),
        ("1/hold", b"[", 400, "body"),
        ("1/hold", b'{"reason": "' + b"a" * 5000 + b'"}', 413, "body"),
        ("1/instruct", b'{"instruction": ""}', 400, "instruction"),
        ("1/instruct", b"{}", 400, "instruction"),
        ("1/instruct", b"", 400, "instruction"),
    ],
)
async def test_a_bad_request_names_its_field(operated: httpx.AsyncClient, path, body, status, field):
    headers = {"content-type": "application/json"} if body else {}
    found = await rejected(operated, path, content=body, headers=headers)
    assert (found[0], found[2]) == (status, field)


@pytest.fixture
async def operated(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(checkpoint) as served, client(served) as http:
        await served.robot().open()
        yield http


async def test_other_pages_may_neither_administer_nor_watch(operated: httpx.AsyncClient):
    own = str(operated.base_url).rstrip("/")
    port = operated.base_url.port
    for headers in (
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"http://localhost:{port}"},
        {"origin": f"https://127.0.0.1:{port}"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": own},
    ):
        assert (await rejected(operated, "1/hold", headers=headers))[:2] == (403, "PERMISSION_DENIED"), headers
        for path in ("/events", "/events/images/1/0"):
            assert (await operated.get(path, headers=headers)).status_code == 403, (path, headers)
    for headers in ({"origin": own}, {"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert (await operated.post(f"{SESSIONS}/1/hold", headers=headers)).status_code == 200, headers


async def test_only_admins_operate_and_control_checks_again(checkpoint: Path, tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.json", (BOSS, "ann", "admin"), (ARM, "arm-1", "control"))
    async with (
        serving(checkpoint, tokens_file=tokens) as served,
        client(served, BOSS) as http,
        client(served, ARM) as other,
        client(served) as nobody,
        robot_with(served, Credentials(token=ARM)) as robot,
    ):
        await robot.open()
        assert (await rejected(other, "1/hold"))[:2] == (403, "PERMISSION_DENIED")
        assert (await rejected(nobody, "1/hold"))[:2] == (401, "UNAUTHENTICATED")
        assert (await act(http, 1, "hold"))["operator"]["by"] == "ann"
        served.service._authenticator.replace([])  # revoked, and the gateway does not know it yet
        assert await rejected(http, "1/resume") == (403, "PERMISSION_DENIED", "authorization")
        lines = [(each["principal"], each.get("rejected", "")) for each in served.events("operator")]
        assert lines == [("ann", ""), ("ann", "REVOKED")]


async def test_requests_are_bounded(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        await served.robot().open()
        async with served.service.plane._planner._planning:
            waiting = [asyncio.create_task(http.post(f"{SESSIONS}/1/mode", json={"mode": "serial"}))]
            gateway = served.children.newest[GATEWAY]
            assert isinstance(gateway, Gateway)
            await eventually(lambda: len(gateway.operators._waiting) == 1)
            gateway.operators._waiting.update(dict.fromkeys(range(-AT_ONCE + 1, 0)))  # as many wait
            assert await rejected(http, "1/hold") == (429, "RESOURCE_EXHAUSTED", "")
            for number in range(-AT_ONCE + 1, 0):
                del gateway.operators._waiting[number]
        assert (await waiting[0]).status_code == 200
        answers = [await http.get(SESSIONS) for _ in range(60)]
        assert {answer.status_code for answer in answers} == {200, 429}
        await act(http, 1, "hold")


async def test_openpi_s_clients_get_hold_as_a_line(checkpoint: Path, tmp_path: Path):
    stub = small_stub(tmp_path, control_rate_hz=200.0)
    async with (
        serving(checkpoint, stub_script(stub)) as served,
        client(served) as http,
        openpi_robot(robots_address(served)) as robot,
    ):
        await robot.act()
        await act(http, 1, "hold")
        assert (await robot.rejected(observation())).startswith("HOLD OPERATOR_HOLD: an operator holds")
        await act(http, 1, "resume")
        await robot.act()


@pytest.mark.parametrize("path", ["/v1/act", "/act"])
async def test_a_single_observation_in_flight_is_answered_by_hold(checkpoint: Path, path: str):
    pixels = np.zeros((HEIGHT, WIDTH, 3), int).tolist()
    image = base64.b64encode(JPEG).decode() if path == "/v1/act" else pixels
    async with serving(checkpoint, Script(hold=True)) as served, client(served) as http:
        base = served.http if path == "/v1/act" else f"http://{robots_address(served)}"
        asking = asyncio.create_task(http.post(f"{base}{path}", json={"image": image, "instruction": "go"}))
        await eventually(lambda: bool(served.script.worker.submitted()))
        await act(http, 1, "hold")
        answer = await asking
        if path == "/v1/act":
            assert answer.status_code == 200
            assert (answer.json()["command"], answer.json()["reason"]) == ("hold", "OPERATOR_HOLD")
        else:
            assert answer.status_code == 503 and "OPERATOR_HOLD" in answer.text


async def test_the_log_has_every_deed(checkpoint: Path):
    async with serving(checkpoint) as served, client(served) as http:
        await served.robot().open()
        for _ in range(12):
            await rejected(http, "9/hold")
        for _ in range(12):
            await act(http, 1, "hold")
        assert sum("rejected" not in line for line in served.events("operator")) == 12


async def test_a_robot_is_asked_for_without_a_body(operated: httpx.AsyncClient):
    assert (await operated.head("/admin/v1/demo-robot")).status_code == 200
