"""Clients of OpenVLA and OpenVLA-OFT, as their documentation writes them (.clients/openvla, at night)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.running import free_port, listens, new_token, serving, session
from tests.plugins.edgeflow_stub import NAN
from tests.service.front_process import wait_for
from tests.stub_policy import stub_checkpoint

pytestmark = pytest.mark.night

OPENVLA: dict[str, Any] = {"image": [224, 224, 3], "instruction": "grasp the red handle"}
OFT: dict[str, Any] = {
    "full_image": [224, 224, 3],
    "left_wrist_image": [224, 224, 3],
    "right_wrist_image": [224, 224, 3],
    "state": [14],
    "instruction": "fold the shirt",
}


def one_action(folder: Path) -> Path:
    """A policy as OpenVLA: one camera of any name, one action."""
    return stub_checkpoint(folder / "stub", horizon=1)


def chunks(folder: Path) -> Path:
    """A policy as OFT on ALOHA: three cameras, 14 joints, 25 rows at 25 Hz."""
    cameras: dict[str, Any] = {"full_image": None, "left_wrist_image": None, "right_wrist_image": None}
    return stub_checkpoint(
        folder / "stub", cameras=cameras, state={"state": 14}, actions=14, horizon=25, control_rate_hz=25.0
    )


def test_openvla(tmp_path: Path):
    with serving(tmp_path, one_action(tmp_path)) as service:
        plain, encoded = session("openvla", service.robots, OPENVLA, "act:10", "encoded:5")["steps"]
    for result in (plain, encoded):
        assert (result["statuses"], result["wrong"]) == ([200], 0), result
        assert (result["shape"], result["dtype"]) == ([1, 7], "float64")


def test_oft(tmp_path: Path):
    with serving(tmp_path, chunks(tmp_path)) as service:
        plain, encoded, arm = session("openvla", service.robots, OFT, "act:5", "oft-encoded:5", "oft:60:25")["steps"]
    for result in (plain, encoded):
        assert (result["statuses"], result["wrong"]) == ([200], 0), result
        assert (result["shape"], result["dtype"]) == ([25, 14], "float64")
    assert (arm["executed"], arm["requests"], arm["width"]) == (60, 3, 14)


def test_errors_are_objects_with_a_status(tmp_path: Path):
    words = ("without:full_image", 'body:{"a"', "body:[]", "act:1")
    with serving(tmp_path, chunks(tmp_path)) as service:
        *bad, good = session("openvla", service.robots, OFT, *words)["steps"]
    for result in bad:
        assert result["statuses"] == [400], result
        assert isinstance(result["answer"], dict) and result["answer"]["error"], result
    assert "full_image" in str(bad[0]["answer"])
    assert good["wrong"] == 0


def test_a_hold_ends_the_episode_of_oft(tmp_path: Path):
    broken = {**OFT, "instruction": NAN}
    with serving(tmp_path, chunks(tmp_path)) as service:
        arm, result = session("openvla", service.robots, broken, "oft:60:25", "act:1")["steps"]
    assert "error" in arm and "executed" not in arm  # its program slices what it got
    assert result["statuses"] == [503]
    assert "POLICY_OUTPUT_INVALID" in result["answer"]["error"]["message"]


def test_a_request_is_answered_while_the_model_loads(tmp_path: Path):
    port = free_port()
    model = stub_checkpoint(tmp_path / "stub", horizon=1, load_s=20.0)
    with serving(tmp_path, model, robots=port, loaded=False) as service:
        wait_for(lambda: listens(port))
        (early,) = session("openvla", port, OPENVLA, "act:1")["steps"]
        assert not service.ready
        wait_for(lambda: service.ready)
        (late,) = session("openvla", port, OPENVLA, "act:1")["steps"]
    assert (early["statuses"], early["answer"]["error"]["code"]) == ([503], "UNAVAILABLE")
    assert (late["statuses"], late["wrong"]) == ([200], 0)


def test_clients_without_tokens_are_admitted_by_their_network_alone(tmp_path: Path):
    tokens, _ = new_token(tmp_path)
    model = one_action(tmp_path)
    statuses = []
    for peers in ([], ["192.0.2.0/24"], ["127.0.0.0/8"]):
        folder = tmp_path / str(len(statuses))
        folder.mkdir()
        frontends = {"openvla": {"peers": peers}}
        with serving(folder, model, tokens_file=str(tokens), frontends=frontends) as service:
            (result,) = session("openvla", service.robots, OPENVLA, "act:2")["steps"]
        statuses.append(result["statuses"])
    assert statuses == [[401], [401], [200]]
