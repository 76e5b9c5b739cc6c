"""HTTP over a real socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re

import httpx
import msgpack
import pytest

from edgeflow.contract import Pace, Speculation
from edgeflow.ipc.messages import OpenSession
from edgeflow.jetson import read_board
from edgeflow.service.observe import board
from tests.jetson_trees import ORIN, write_tree
from tests.service.harness import HEIGHT, JPEG, WIDTH, scraped, serving
from tests.service.scripted import Script

TURNED = bytes.fromhex("ffe1001e457869660000 4d4d002a00000008 0001 011200030000000100060000")  # EXIF orientation 6
JSON_BODY = {"image": base64.b64encode(JPEG).decode(), "instruction": "grasp the red handle"}


@contextlib.asynccontextmanager
async def client(checkpoint, script=None, **overrides):
    async with serving(checkpoint, script, **overrides) as served, httpx.AsyncClient(base_url=served.http) as http:
        yield http, served


async def test_json_in_json_out(checkpoint):
    async with client(checkpoint) as (http, served):
        answer = await http.post("/v1/act", json=JSON_BODY)
        assert answer.status_code == 200
        body = answer.json()
        assert (body["action"], body["command"], body["token_ids"]) == ([0.25, -0.5, 1.0], "act", [7, 8, 9])
        assert body["schema"]["names"] == ["x", "y", "grip"]
        frame = served.script.worker.submitted()[0]
        assert (frame.sizes, frame.instruction) == ([HEIGHT, WIDTH], "grasp the red handle")


async def test_msgpack_in_msgpack_out(checkpoint):
    body = {"image": bytes(48), "format": "rgb8", "width": 4, "height": 4, "instruction": "go", "proprio": {"a": 1.0}}
    async with client(checkpoint) as (http, served):
        headers = {"content-type": "application/msgpack"}
        answer = await http.post("/v1/act", content=msgpack.packb(body), headers=headers)
        assert answer.status_code == 200, answer.text
        assert msgpack.unpackb(answer.content)["action"] == [0.25, -0.5, 1.0]
        assert served.script.worker.submitted()[0].payload == bytes(48)


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"image": "not base64!"}, 400, "INVALID_ARGUMENT", "image"),
        ({"image": base64.b64encode(b"text").decode()}, 400, "INVALID_ARGUMENT", "image"),
        (
            {"image": base64.b64encode(JPEG[:2] + TURNED + JPEG[2:]).decode()},
            400,
            "INVALID_ARGUMENT",
            "frame.images[0].data",
        ),
        ({"instruction": ""}, 400, "INVALID_ARGUMENT", "open.instruction"),
        ({"instruction": "\ud800"}, 400, "INVALID_ARGUMENT", "instruction"),
        ({"proprio": {"\ud800": 1.0}}, 400, "INVALID_ARGUMENT", "proprio"),
        ({"model": "\ud800"}, 400, "INVALID_ARGUMENT", "model"),
        ({"unnorm_key": "\ud800"}, 400, "INVALID_ARGUMENT", "unnorm_key"),
        ({"k" * 100_000: 1}, 400, "INVALID_ARGUMENT", "k" * 100),
        ({"instruction": 3}, 400, "INVALID_ARGUMENT", "instruction"),
        ({"instructions": "x"}, 400, "INVALID_ARGUMENT", "instructions"),
        ({"model": "other"}, 404, "NOT_FOUND", "open.model"),
        ({"width": 5, "height": 5}, 400, "INVALID_ARGUMENT", "frame.images[0].data"),
        ({"format": "png"}, 400, "INVALID_ARGUMENT", "format"),
        ({"proprio": {"a": 1e300}}, 400, "INVALID_ARGUMENT", "frame.proprio[0]"),
    ],
)
async def test_a_bad_body_names_the_field(checkpoint, changes, status, code, field):
    async with client(checkpoint) as (http, _):
        content = json.dumps({**JSON_BODY, **changes})
        answer = await http.post("/v1/act", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status
        error = answer.json()["error"]
        assert (error["code"], error["field"]) == (code, field)


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"[]", {"content-type": "application/json"}, 400),
        (b"[" * 50_000, {"content-type": "application/json"}, 400),
        (b"\xc1", {"content-type": "application/msgpack"}, 400),
        (b"x", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ],
)
async def test_bodies_that_cannot_be_read(checkpoint, content, headers, status):
    async with client(checkpoint) as (http, _):
        answer = await http.post("/v1/act", content=content, headers=headers)
        assert answer.status_code == status and answer.json()["error"]["message"]


async def test_a_body_above_the_limit_is_rejected_with_and_without_a_length(checkpoint):
    async def chunks():
        for _ in range(8):
            yield bytes(1000)

    async with client(checkpoint, limits__http_body_bytes=4000) as (http, served):
        headers = {"content-type": "application/json"}
        assert (await http.post("/v1/act", content=bytes(5000), headers=headers)).status_code == 413
        assert (await http.post("/v1/act", content=chunks(), headers=headers)).status_code == 413
        assert served.metric("edgeflow_limit_rejections_total", limit="http_body_bytes") == 2


async def test_states_metrics_and_models(checkpoint):
    async with client(checkpoint) as (http, _):
        assert (await http.get("/healthz")).json() == {"state": "ready"}
        assert (await http.get("/readyz")).status_code == 200
        models = (await http.get("/v1/models")).json()["data"]
        assert (models[0]["id"], models[0]["action_tokens"]) == ("demo", 3)
        await http.post("/v1/act", json=JSON_BODY)
        text = await scraped(http, 'edgeflow_frames_total{disposition="acted",reason=""} 1.0')
        assert 'edgeflow_health_state{state="ready"} 1.0' in text


async def test_a_jetson_is_seen_and_times_of_another_power_mode_are_marked(checkpoint, tmp_path, monkeypatch):
    root = write_tree(tmp_path / "orin", ORIN)
    monkeypatch.setattr(board, "read_board", lambda _: read_board(root))
    monkeypatch.setattr(board, "SAMPLE_S", 0.02)
    async with client(checkpoint) as (http, _):

        async def shown() -> dict[str, object]:
            return (await http.get("/v1/models")).json()["data"][0]["board"]

        assert (await shown())["times_measured_in"]["power_mode"] == "0 MAXN"
        assert (await shown())["times_measured_elsewhere"] is None
        write_tree(root, {"var/lib/nvpmodel/status": "pmode:0002"})
        while (await shown())["times_measured_elsewhere"] != "power_mode 0 MAXN, now 2 MODE_30W":
            await asyncio.sleep(0.01)
        text = await scraped(http, "edgeflow_times_measured_elsewhere 1.0")
        assert 'edgeflow_board_temperature_celsius{zone="tj-thermal"} 51.687' in text


async def test_a_single_action_may_draft_its_tokens(checkpoint):
    async with client(checkpoint) as (http, served):
        answer = await http.post("/v1/act", json=JSON_BODY | {"mode": "speculative"})
        assert answer.status_code == 200 and answer.json()["schema"]["control_rate_hz"] == 0.0
        opened = [message.pace for message in served.script.worker.seen if isinstance(message, OpenSession)]
        assert opened == [Pace(0, Speculation())]


EXPECTED = """
frames_total actions_total sessions sessions_opened_total sessions_closed_total admission_rejected_total
observation_age_seconds decode_seconds queue_seconds inference_seconds encode_seconds frame_e2e_seconds
deadline_missed_total mailbox_superseded_total ingress_gap_seconds safe_action_total watchdog_fired_total rpc_total
limit_rejections_total health_state draining worker_last_progress_timestamp_seconds worker_restarts_total
event_loop_lag_seconds gc_pause_seconds build_info action_passes actions_unsettled_total
"""


async def test_metric_names_are_the_contract_s(checkpoint):
    async with client(checkpoint) as (http, _):
        text = await scraped(http, "edgeflow_frames_total")
        help_lines = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
        assert {f"edgeflow_{name}" for name in EXPECTED.split()} <= help_lines
        assert "process_resident_memory_bytes" in help_lines


async def test_unknown_paths_and_methods_have_the_same_error_shape(checkpoint):
    async with client(checkpoint) as (http, _):
        for answer, status in ((await http.get("/nope"), 404), (await http.get("/v1/act"), 405)):
            assert answer.status_code == status and answer.json()["error"]["code"]


async def test_a_worker_lost_meanwhile_is_unavailable(checkpoint):
    script = Script(values=lambda frame: script.worker.kill() or [0.0] * 3)
    async with client(checkpoint, script) as (http, _):
        answer = await http.post("/v1/act", json=JSON_BODY)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "UNAVAILABLE"


async def test_all_sessions_taken_says_when_to_try_again(checkpoint):
    async with client(checkpoint, max_sessions=1) as (http, served):
        robot = served.robot()
        await robot.open()
        answer = await http.post("/v1/act", json=JSON_BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def test_a_bug_becomes_an_incident_without_its_text(checkpoint, monkeypatch):
    async with client(checkpoint, incidents=1) as (http, served):
        monkeypatch.setattr(served.service.plane, "_admit", lambda: {}["secret"])
        answer = await http.post("/v1/act", json=JSON_BODY)
        assert answer.status_code == 500
        assert served.events("incident")[0]["incident"] in answer.json()["error"]["message"]
        assert "secret" not in answer.text


async def test_pages_of_documentation_only_on_loopback(checkpoint):
    async with client(checkpoint) as (http, _):
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert "requestBody" in paths["/v1/act"]["post"]
        assert paths["/v1/act"]["post"]["summary"] == "One action for one observation"
        page = await http.get("/docs/api")
        assert not re.search(r"https?://", page.text), "a robot's network has no internet"
        for part in re.findall(r"""(?:src|href)="([^"]+)""", page.text):
            found = await http.get(part)
            assert found.status_code == 200 and len(found.content) > 1000, part
    async with client(checkpoint, http__host="0.0.0.0", insecure=True) as (http, served):
        assert (await http.get("/openapi.json")).status_code == 404
        assert any("http.host" in event["text"] for event in served.events("warning"))
