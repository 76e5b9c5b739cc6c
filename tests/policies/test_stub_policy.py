"""The stub policy is served as an installed plug-in, and answers recorded observations as the original servers did."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Image, Observation
from edgeflow.engine.control.warmup import warm_up
from edgeflow.scheduler.session import Shift
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow_client.actions import Action
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec
from tests.plugins.edgeflow_stub import BEYOND, NAN, REFUSE, answer
from tests.policies.service_process import served
from tests.policies.test_served import answer_of, first_action, loaded
from tests.recorded_sessions import SESSIONS, Exchange, recorded_checkpoint, recorded_session
from tests.service.front_process import HANG_S
from tests.stub_policy import stub_checkpoint

OFT = "openvla/oft"


def body(seen: Exchange, **changes: Any) -> dict[str, Any]:
    """A request of /v1/act with what a client showed."""
    images = {
        name: {
            "data": base64.b64encode(image.tobytes()).decode(),
            "format": "rgb8",
            "width": image.shape[1],
            "height": image.shape[0],
        }
        for name, image in seen.images.items()
    }
    state = {name: vector.tolist() for name, vector in seen.state.items()}
    return {"images": images, "state": state, "instruction": seen.instruction, **changes}


@pytest.mark.oracle("wire")
@pytest.mark.parametrize("name", SESSIONS)
def test_recorded_observations_get_the_recorded_actions(stub_plugin: None, tmp_path: Path, name: str):
    session = recorded_session(name)
    policy = loaded(recorded_checkpoint(tmp_path / "stub", session), {})
    assert len(session.answered) >= 2
    for each in session.answered:
        images = {key: Image(*image.shape[:2], image.tobytes()) for key, image in each.images.items()}
        state = {key: tuple(vector.tolist()) for key, vector in each.state.items()}
        found = answer_of(policy, Observation(images=images, state=state, instruction=each.instruction))
        assert np.array_equal(found, np.atleast_2d(each.actions))


def test_a_stub_that_ignores_pixels_counts_rows(stub_plugin: None, tmp_path: Path):
    policy = loaded(stub_checkpoint(tmp_path / "stub", actions=2, horizon=3, looks=False), {})
    seen = Observation(images={"camera": Image(1, 1, b"abc")}, instruction="go")
    assert answer_of(policy, seen).tolist() == [[0, 0], [1, 1], [2, 2]]


def build(directory: Path, **config: Any) -> BuiltEngine:
    return build_engine(ServiceConfig.model_validate({"model": str(directory), "device": "cpu", **config}))


def test_a_policy_for_one_robot_takes_no_more(stub_plugin: None, tmp_path: Path):
    directory = stub_checkpoint(tmp_path / "stub", most_sessions=1)
    built = build(directory)
    assert built.limits.max_sessions == 1 and "serves 1 robot at a time" in built.remarks[0]
    with pytest.raises(ConfigError, match="max_sessions: is 2; this policy, of the family stub, serves at most 1"):
        build(directory, max_sessions=2)


def test_an_answer_that_is_not_as_announced_is_found_at_the_start(
    stub_plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = build(stub_checkpoint(tmp_path / "stub", actions=2, horizon=3)).engine
    warm_up(engine, Shift.ROTATE, Mock())
    monkeypatch.setattr(engine.policy, "actions", lambda values, key: values[:2])
    with pytest.raises(
        CheckpointError, match=r"of StubPolicy has shape \[2, 2\]; its action_schema announces \[3, 2\]"
    ):
        warm_up(engine, Shift.ROTATE, Mock())


def test_what_a_history_needs_is_checked_before_robots_come(
    stub_plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = stub_checkpoint(tmp_path / "stub", history=2)
    assert build(directory).engine.policy.inputs.history == 2
    policy = type(build(directory).engine.policy)
    with monkeypatch.context() as changed, pytest.raises(CheckpointError, match=r"StubPolicy .* has no joined"):
        changed.delattr(policy, "joined")
        build(directory)
    with (
        monkeypatch.context() as changed,
        pytest.raises(ConfigError, match="StubPolicy has no rtc, which every policy"),
    ):
        changed.delattr(policy, "rtc")
        build(directory)
    monkeypatch.setattr(policy, "begin", lambda self, session: None, raising=False)
    with pytest.raises(CheckpointError, match="StubPolicy needs both begin"):
        build(directory)


@pytest.mark.night
@pytest.mark.oracle("wire")
def test_every_bit_of_them_reaches_robots(stub_plugin: None, tmp_path: Path):
    session = recorded_session(OFT)
    seen, other = session.answered
    directory = recorded_checkpoint(tmp_path / "stub", session, low=-1e3, high=1e3)
    with served(tmp_path, str(directory)) as address:
        url = f"http://127.0.0.1:{json.loads((tmp_path / 'ready.json').read_text())['http']}/v1/act"
        with httpx.Client(timeout=HANG_S) as client:

            def act(**changes: Any) -> httpx.Response:
                return client.post(url, json=body(seen, **changes))

            assert np.array_equal(np.reshape(act().json()["chunk"], seen.actions.shape), seen.actions)
            pixels, state = {**seen.images, "full_image": seen.images["full_image"] ^ 1}, seen.state
            told = act(images=body(Exchange(what="", request=b"", answer=b"", images=pixels))["images"])
            vectors = {name: vector.tolist() for name, vector in state.items()}
            assert np.array_equal(told.json()["chunk"], answer(pixels, vectors, *seen.actions.shape))
            for instruction in (NAN, BEYOND):
                assert act(instruction=instruction).json()["command"] == "hold"
            refused = act(instruction=REFUSE)
            assert refused.status_code == 400 and "the stub refuses this frame" in refused.text
        cameras = [CameraSpec(name, 40, 40, ImageFormat.RGB8) for name in seen.images]
        acted: SimpleQueue[Action] = SimpleQueue()
        with RobotClient(
            address,
            cameras=cameras,
            state=[StateSpec(name="state", size=14)],
            instruction=other.instruction,
            control_period_s=0.1,
            on_action=lambda directive: directive.action and acted.put(directive.action),
        ) as robot:
            numbers = {"state": tuple(other.state["state"].tolist())}
            action = first_action(acted, lambda: robot.push(dict(other.images), state=numbers))
            assert np.array_equal(action.chunk, other.actions)
