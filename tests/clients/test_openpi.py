"""openpi's own client with the service: answers, errors, HOLD, tokens, loading (.clients/openpi, at night)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.clients.running import RobotsService, finished, free_port, listens, new_token, serving, session, started
from tests.service.front_process import wait_for
from tests.stub_policy import stub_checkpoint

pytestmark = pytest.mark.night

IMAGES = ("observation/image", "observation/wrist_image")
LIBERO: dict[str, Any] = {
    **{name: [224, 224, 3] for name in IMAGES},
    "observation/state": [8],
    "prompt": "grasp the red handle",
}
NAMES = {
    "cameras": {"image": "observation/image", "wrist_image": "observation/wrist_image"},
    "state": {"state": "observation/state"},
}


def checkpoint(folder: Path, **changed: Any) -> Path:
    """A policy with the inputs of LIBERO, and chunks of ten rows at 20 Hz."""
    cameras: dict[str, Any] = {"image": None, "wrist_image": None}
    return stub_checkpoint(folder / "stub", cameras=cameras, state={"state": 8}, horizon=10, **changed)


def steps(service: RobotsService, *words: str) -> list[dict[str, Any]]:
    """The results of a client's steps."""
    return session("openpi", service.robots, LIBERO, *words)["steps"]


def test_a_robot_runs(tmp_path: Path):
    with serving(tmp_path, checkpoint(tmp_path), frontends={"openpi": NAMES}) as service:
        report = session("openpi", service.robots, LIBERO, "rate:20:2", "broker:25:10", "runtime:30:10")
    assert isinstance(report["metadata"], dict)
    calls, broker, episode = report["steps"]
    assert (calls["wrong"], calls["shapes"], calls["dtype"]) == (0, ["(10, 7)"], "float32")
    assert calls["beside"]["server_timing"]["infer_ms"] >= 0
    assert broker["shapes"] == ["(7,)"] and "error" not in broker  # arrays beside the actions would not be cut
    assert episode == {"step": "runtime:30:10", "rows": 30, "finite": True}


def test_an_error_names_the_field_and_the_client_goes_on(tmp_path: Path):
    with serving(tmp_path, checkpoint(tmp_path), frontends={"openpi": NAMES}) as service:
        before, without, after = steps(service, "infer:1", "without:observation/wrist_image", "infer:2")
    assert (before["wrong"], after["wrong"]) == (0, 0)
    assert without["error"].startswith("RuntimeError: Error in inference server")
    assert "wrist_image" in without["error"] and "Traceback" not in without["error"]


@pytest.mark.parametrize("answer", ["hold", "stop", "reject"])
def test_a_safe_answer_ends_the_episode_and_not_the_connection(tmp_path: Path, answer: str):
    faults = [{"answer": answer, "first": 3, "last": 3}]
    with serving(tmp_path, checkpoint(tmp_path), frontends={"openpi": NAMES, "faults": faults}) as service:
        episode, after = steps(service, "runtime:60:10", "infer:1")
    assert episode["rows"] == 20, episode  # the rows of two answers, and none after them
    assert "FORCED" in episode["error"]
    if answer == "stop":
        assert "STOP FAULT" in after["error"], "until the client connects again"
    else:
        assert after.get("wrong") == 0, after


def test_a_late_answer_is_that_of_its_request(tmp_path: Path):
    faults = [{"answer": "delay", "first": 2, "last": 2, "delay_ms": 3_000}]
    frontends = {"openpi": NAMES, "faults": faults}
    with serving(tmp_path, checkpoint(tmp_path), frontends=frontends, max_action_age_ms=60_000) as service:
        first, late, after = steps(service, "infer:1", "infer:1", "infer:5")
    assert first["wrong"] == 0 and after["wrong"] == 0
    assert late.get("wrong") == 0, late


def test_a_token_is_an_api_key(tmp_path: Path):
    tokens, secret = new_token(tmp_path)
    model = checkpoint(tmp_path)
    with serving(tmp_path, model, frontends={"openpi": NAMES}, tokens_file=str(tokens)) as service:
        key = ("--api-key", secret)
        right = session("openpi", service.robots, LIBERO, "infer:2", *key)
        wrong = session("openpi", service.robots, LIBERO, "infer:2", "--api-key", "guess")
        none = session("openpi", service.robots, LIBERO, "infer:2")
    assert right["steps"][0]["wrong"] == 0
    assert "401" in wrong["error"] and "401" in none["error"]


def test_a_client_survives_the_loss_of_a_worker(tmp_path: Path):
    with serving(tmp_path, checkpoint(tmp_path), frontends={"openpi": NAMES}) as service:
        program = started("openpi", service.robots, LIBERO, "infer:1", "again:1200:20", "infer:1")
        wait_for(lambda: service.events("session_opened"))
        os.kill(service.worker, signal.SIGKILL)
        wait_for(lambda: service.events("worker_lost"))
        assert program.poll() is None, "the client acts on"
        first, through, last = finished(program)["steps"]
    assert first.get("wrong") == 0 and last.get("wrong") == 0, (first, last)
    assert through["recovered"] and through["wrong"] == 0, through
    assert all("HOLD WORKER_" in error for error in through["errors"]), through


def test_a_client_survives_a_minute_of_loading(tmp_path: Path):
    port = free_port()
    model = checkpoint(tmp_path, load_s=60.0)
    with serving(tmp_path, model, robots=port, loaded=False, frontends={"openpi": NAMES}):
        wait_for(lambda: listens(port))
        report = session("openpi", port, LIBERO, "infer:3")
    assert report["connected_s"] > 30  # it waits for the metadata, and sends no picture of before
    assert report["metadata"]["action_horizon"] == 10
    (calls,) = report["steps"]
    assert calls.get("wrong") == 0, calls


def test_metadata_is_plain(tmp_path: Path):
    frontends = {"openpi": {**NAMES, "metadata": {"reset_pose": [0, -1.5, 1.5, 0, 0, 0]}}}
    with serving(tmp_path, checkpoint(tmp_path), frontends=frontends) as service:
        metadata = session("openpi", service.robots, LIBERO)["metadata"]
    assert metadata["reset_pose"] == [0, -1.5, 1.5, 0, 0, 0]
    assert json.loads(json.dumps(metadata)) == metadata
