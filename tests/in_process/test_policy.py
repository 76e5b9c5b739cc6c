"""A policy in the calling process: what it takes, what it rejects, and what its robots have in common."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import edgeflow
from edgeflow_client.errors import (
    CheckpointError,
    ConfigError,
    EdgeflowError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
)
from tests.plugins.edgeflow_stub import BEYOND, NAN, REFUSE, answer
from tests.policies.flow.tiny import write_checkpoint as write_flow
from tests.policies.flow.weights import Tiny
from tests.stub_policy import stub_checkpoint, stub_plugin

__all__ = ["stub_plugin"]
TOP, WRIST = (np.full((12, 16, 3), level, np.uint8) for level in (10, 200))
JOINTS = np.array([0.1, 0.2, 0.3], np.float64)
OBSERVATION = {"top": TOP, "wrist": WRIST, "observation.state": JOINTS}


@pytest.fixture
def checkpoint(stub_plugin: None, tmp_path: Path) -> Path:
    cameras = {"observation.images.top": (16, 12), "wrist": None}
    return stub_checkpoint(tmp_path / "stub", cameras=cameras, state={"state": 3}, actions=5, high=9.0, low=-1.0)


@pytest.fixture
def policy(checkpoint: Path) -> Iterator[edgeflow.LocalPolicy]:
    with edgeflow.load(checkpoint, max_sessions=3) as policy:
        yield policy


def test_the_answer_is_the_policys(policy: edgeflow.LocalPolicy):
    chunk = policy.infer(OBSERVATION)
    assert isinstance(chunk, edgeflow.Chunk) and policy.schema.horizon == chunk.horizon == 8
    expected = answer({"top": TOP.tobytes(), "wrist": WRIST.tobytes()}, {"state": JOINTS}, 8, 5)
    assert chunk.array.shape == (8, 5) and (chunk.array == expected).all()
    assert (policy.infer({**OBSERVATION, "top": TOP[:, ::-1]}).array == expected).all()  # not contiguous


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top": None}, "'top' is NoneType; give a camera as uint8 [height, width, 3]"),
        ({"top": TOP[:4]}, "camera 'top' is 16x4; the policy takes 'observation.images.top' 16x12"),
        ({"top": TOP.astype(np.float32)}, "images['top']: is float32 [12, 16, 3]; expected is uint8"),
        ({"top": TOP[:, :, 0]}, "'top' is uint8 [12, 16]; give a camera"),
        ({"observation.state": [1.0]}, "'observation.state' has 1 numbers; the policy takes 3"),
        ({"observation.state": [1.0, np.nan, 0.0]}, "nan) at 1; it must be a finite float32"),
        ({"observation.state": ["a", "b", "c"]}, "must be 3 numbers, got ndarray"),
        ({"front": TOP, "speed": [1.0]}, "the policy has no 'front', 'speed': the policy needs"),
        ({"instruction": 5}, "'instruction' must be a text, got int"),
        ({"instruction": "a\ud800"}, "'instruction' is not a text: it has half of a character"),
        ({"stamp_ns": 1.5}, "'stamp_ns' must be an integer"),
        ({"delay_ms": 0}, "'delay_ms' is given, and the policy takes no delay; leave it out"),
    ],
)
def test_a_wrong_observation_is_rejected(policy: edgeflow.LocalPolicy, changes: dict, words: str):
    with pytest.raises(InvalidArgument) as caught:
        policy.infer({**OBSERVATION, **changes})
    assert caught.value.text.startswith("observation: ") and words in caught.value.text


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[edgeflow.LocalPolicy]:
    directory = write_flow(tmp_path_factory.mktemp("delayed"), Tiny(kind="smolvla", delay=True))
    with edgeflow.load(directory, policy={"control_rate_hz": 20}) as policy:
        yield policy


DELAYED = {"top": TOP, "wrist": WRIST, "state": JOINTS, "instruction": "lift it", "stamp_ns": 1}


def test_a_delay_is_the_answers_own(delayed: edgeflow.LocalPolicy):
    assert delayed.inputs.most_delay_ms == 600.0
    plain = delayed.infer(DELAYED).array
    chunks = delayed.infer_many({1: {**DELAYED, "delay_ms": 0}, 2: {**DELAYED, "delay_ms": np.float32(600)}})
    assert np.allclose(chunks[1].array, plain, atol=1e-5) and not np.allclose(chunks[2].array, plain, atol=1e-3)


@pytest.mark.parametrize("given", [601, -0.5, float("nan"), "fast", "300", [1.0, 2.0]])
def test_a_delay_beyond_the_policys_is_rejected(delayed: edgeflow.LocalPolicy, given: object):
    with pytest.raises(InvalidArgument, match="'delay_ms' must be a number of milliseconds from 0 to 600, got "):
        delayed.infer({**DELAYED, "delay_ms": given})


def test_a_missing_input_is_named_with_both_lists(policy: edgeflow.LocalPolicy):
    with pytest.raises(InvalidArgument) as caught:
        policy.infer({"wrist": WRIST, "front": TOP, "state": JOINTS})
    text = caught.value.text
    assert "no camera is the policy's 'observation.images.top': the policy needs" in text
    assert """'wrist' 16x12, 'front' 16x12; if 'front' is it, configure "cameras":""" in text


def test_names_are_mapped_by_the_configuration(checkpoint: Path):
    with edgeflow.load(checkpoint, cameras={"top": "front"}, **{"state.state": ["a", "b"]}) as policy:
        observation = {"front": TOP, "wrist": WRIST, "a": JOINTS[:1], "b": JOINTS[1:]}
        expected = answer({"top": TOP.tobytes(), "wrist": WRIST.tobytes()}, {"state": JOINTS}, 8, 5)
        assert (policy.infer(observation).array == expected).all()


@pytest.mark.parametrize(
    ("instruction", "kind", "words"),
    [(NAN, Internal, "not finite"), (BEYOND, Internal, "outside the action limits"), (REFUSE, InvalidArgument, "stub")],
)
def test_no_action_is_made_up(policy: edgeflow.LocalPolicy, instruction: str, kind: type[EdgeflowError], words: str):
    before = policy.infer(OBSERVATION)
    with pytest.raises(kind, match=words):
        policy.infer({**OBSERVATION, "instruction": instruction})
    assert policy.infer(OBSERVATION) == before


def test_robots_share_passes_and_nothing_else(policy: edgeflow.LocalPolicy):
    observations = {name: {**OBSERVATION, "wrist": WRIST - step} for step, name in enumerate(("a", "b", "c"))}
    before = policy._policy.passes
    found = policy.infer_many(observations)
    assert policy._policy.passes == before + 1 and list(found) == list(observations)
    assert len({chunk.values for chunk in found.values()}) == 3
    assert found == {name: policy.infer(each, robot=name) for name, each in observations.items()}
    with pytest.raises(ResourceExhausted, match=r"4 robots; the policy was loaded for 3: .* max_sessions=4"):
        policy.infer(OBSERVATION, robot="d")
    policy.forget("c")
    with pytest.raises(ResourceExhausted):
        policy.infer_many({"d": OBSERVATION, "e": OBSERVATION})
    assert policy.infer(OBSERVATION, robot="d") == found["a"]
    with pytest.raises(InvalidArgument, match="must be a dict of observations by robot, got list"):
        policy.infer_many([OBSERVATION])
    with pytest.raises(InvalidArgument, match=r"^'b': no image came"):
        policy.infer_many({"a": OBSERVATION, "b": {}})


def test_history_is_of_one_robot_and_one_episode(stub_plugin: None, tmp_path: Path):
    model = stub_checkpoint(tmp_path / "two", cameras={"wrist": None}, history=2)
    with edgeflow.load(model) as policy:
        dark, bright = ({"wrist": picture, "instruction": "go"} for picture in (TOP, WRIST))
        of_dark, of_bright = (policy.infer(each, robot=each["wrist"].sum()).array / 2 for each in (dark, bright))
        policy.infer(dark)
        assert (policy.infer(bright).array == of_dark + of_bright).all()
        policy.reset()
        assert (policy.infer(bright).array == 2 * of_bright).all()
        assert (policy.infer({**dark, "instruction": "stop"}).array == 2 * of_dark).all()


def test_a_policy_with_state_sees_the_end_of_each_session(checkpoint: Path):
    begun, ended = list[int](), list[int]()
    with edgeflow.load(checkpoint) as policy:
        policy._policy.begin, policy._policy.end = begun.append, ended.append
        policy.infer_many({"a": OBSERVATION, "b": OBSERVATION})
        policy.reset("a")
        policy.infer(OBSERVATION, robot="a")
        assert (sorted(begun), ended) == ([1, 2, 3], [1])
    assert sorted(ended) == [1, 2, 3]


def test_stamps_do_not_go_back_within_an_episode(policy: edgeflow.LocalPolicy):
    policy.infer({**OBSERVATION, "stamp_ns": np.int64(500)})
    policy.infer({**OBSERVATION, "stamp_ns": 500})
    policy.infer({**OBSERVATION, "stamp_ns": 3}, robot=1)
    with pytest.raises(OutOfRange, match=r"'stamp_ns' 499 is earlier than the one before, 500"):
        policy.infer({**OBSERVATION, "stamp_ns": 499})
    policy.reset()
    policy.infer({**OBSERVATION, "stamp_ns": 499})


def test_an_interrupted_answer_is_nobodys(monkeypatch: pytest.MonkeyPatch):
    pictures = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), np.uint8)
    first, second = ({"image": picture, "instruction": "grasp the red handle"} for picture in pictures)
    with edgeflow.load("demo", mode="serial") as policy:
        expected = policy.infer(second)
        assert policy.infer(first) != expected
        steps = count(1)

        def step(real: Callable[[], bool] = policy._worker.step) -> bool:
            if next(steps) == 3:
                raise KeyboardInterrupt
            return real()

        monkeypatch.setattr(policy._worker, "step", step)
        with pytest.raises(KeyboardInterrupt):
            policy.infer(first)
        assert policy.infer(second) == expected


def test_one_thread_at_a_time(policy: edgeflow.LocalPolicy, monkeypatch: pytest.MonkeyPatch):
    failures = []

    def step(real: Callable[[], bool] = policy._worker.step) -> bool:
        with pytest.raises(FailedPrecondition, match="another thread is asking this policy") as caught:
            policy.infer(OBSERVATION)
        failures.append(caught)
        return real()

    with monkeypatch.context() as asked:
        asked.setattr(policy._worker, "step", step)
        first = policy.infer(OBSERVATION)
    assert failures and policy.infer(OBSERVATION) == first


def test_an_answer_that_is_not_as_announced_is_found_as_it_is_loaded(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    with edgeflow.load(checkpoint) as policy:
        kind = type(policy._policy)
    monkeypatch.setattr(kind, "actions", lambda self, values, key: values[:2])
    with pytest.raises(
        CheckpointError, match=r"of StubPolicy has shape \[2, 5\]; its action_schema announces \[8, 5\]"
    ):
        edgeflow.load(checkpoint)


def test_each_function_names_the_other_for_its_models():
    for load, model, other in ((edgeflow.load, "demo-chat", "load_chat"), (edgeflow.load_chat, "demo-flow", "load")):
        with pytest.raises(ConfigError, match=rf"^model: {model} is loaded with edgeflow\.{other}$"):
            load(model)


def test_settings_are_those_of_the_configuration(checkpoint: Path, tmp_path: Path):
    file = tmp_path / "service.json"
    file.write_text('{"policy": {"family": "wrong"}, "trajectory": {"weights": {"roughness": -1}}}')
    with pytest.raises(ConfigError, match=r"^policy.family: 'wrong'"):
        edgeflow.load(checkpoint, config=file, trajectory={"weights": {"roughness": 1.0}})
    with pytest.raises(ConfigError, match=r"^trajectory.weights.roughness: -1"):  # a section is not replaced
        edgeflow.load(checkpoint, config=file, policy={"family": "stub"}, trajectory={"weights": {"distance": 1.0}})
    with pytest.raises(ConfigError, match=r"^polcy: unknown key; did you mean policy\?$"):
        edgeflow.load(checkpoint, polcy={})
    both = stub_checkpoint(tmp_path / "both", unnorm_keys=("first", "second"))
    with pytest.raises(ConfigError, match=r"^unnorm_key: choose one of first, second$"):
        edgeflow.load(both)


def test_a_closed_policy_says_so(checkpoint: Path):
    with edgeflow.load(checkpoint) as policy:
        pass
    policy.close()
    assert policy.inputs.numbers == 3
    with pytest.raises(FailedPrecondition, match="closed"):
        policy.infer(OBSERVATION)


def test_the_import_is_light():
    code = "import edgeflow, sys; edgeflow.load, edgeflow.load_chat; print({'torch', 'pydantic'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    with pytest.raises(AttributeError, match="lod"):
        edgeflow.lod  # noqa: B018
