"""openpi's websocket: array codings, dialects, and rejections that leave the connection open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from edgeflow.service.frontends.openpi import seen_of
from edgeflow_client.reasons import Reason
from tests.cases import by_night
from tests.plugins.edgeflow_stub import answer
from tests.service.frontends.robot_clients import SIDE, OpenpiRobot, observation, openpi_robot, robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import RunningService, serving
from tests.stub_policy import stub_checkpoint

ACTIONS, HORIZON = 2, 3
MARKERS = {ArrayCoding.OPENPI: b"__ndarray__", ArrayCoding.VLLM: b"nd", ArrayCoding.PACKAGE: b"nd"}
VLLM_PATH = "/v1/realtime/robot/openpi"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {"cameras": {"image": (SIDE, SIDE)}, "state": {"state": 2}, "control_rate_hz": 200.0}
    return stub_checkpoint(tmp_path_factory.mktemp("stub") / "stub", actions=ACTIONS, horizon=HORIZON, **shape)


@contextlib.asynccontextmanager
async def service(checkpoint: Path, stub: Path, **settings: Any) -> AsyncIterator[RunningService]:
    async with serving(checkpoint, stub_script(stub), **settings) as served:
        yield served


def expected(seen: dict[str, Any]) -> np.ndarray:
    """The actions of the stub policy, as they cross the wire."""
    image, state = seen["observation/image"], seen["observation/state"]
    found: np.ndarray = answer({"": image.tobytes()}, {"": state}, HORIZON, ACTIONS).astype(np.float32)
    return found


async def rejected_with(robot: OpenpiRobot, value: Any, reason: Reason, field: str = "") -> str:
    """The rejection of a message, whose robot then gets an action for a right one."""
    text = await robot.rejected(value)
    assert text.startswith(f"REJECTED {reason.value}: ") and field in text, text
    assert np.array_equal(await robot.act(grey=1), expected(observation(grey=1)))
    return text


async def test_arrays_are_answered_in_the_coding_in_which_they_came(checkpoint, stub: Path):
    seen = observation(grey=7, **{"observation/state": np.array([0.5, -1.0], np.float32)})
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        for coding in (*ArrayCoding, ArrayCoding.OPENPI):
            await robot.send(seen, coding)
            reply = await robot.socket.recv()
            assert unpack(reply, 1000)[1] is coding
            actions = unpack(reply, 1000)[0]["actions"]
            assert actions.dtype == np.float32 and np.array_equal(actions, expected(seen))
            keys = msgpack.unpackb(reply)["actions"]
            assert next(iter(keys)) == MARKERS[coding] and (b"kind" in keys) == (coding is not ArrayCoding.OPENPI)


async def test_images_may_be_channels_first_and_floats_and_the_prompt_bytes(checkpoint, stub: Path):
    pixels = np.arange(SIDE * SIDE * 3, dtype=np.uint32).reshape(SIDE, SIDE, 3).astype(np.uint8)
    seen = observation(**{"observation/image": pixels})
    forms: list[dict[str, Any]] = [
        {"observation/image": np.ascontiguousarray(pixels.transpose(2, 0, 1))},
        {"observation/image": (pixels / 255).astype(np.float64)},
        {"observation/state": [0.0, 0.0]},
        {"prompt": b"go"},
        {"prompt": None, "task": "go"},
        {"depth": np.zeros((4, 4), np.float32), "mask": np.zeros(3, bool), "none": np.zeros(0, np.float32)},
        {f"camera{index}": np.zeros((4, 4, 3), np.uint8) for index in range(20)},
        {f"joint{index}": 0.5 for index in range(300)},
        {"noise": np.zeros((3, 2), np.float32), "num_inference_steps": 5, "sampling_params": {"seed": 1}},
    ]
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        for changes in forms:
            reply = await robot.ask({key: value for key, value in {**seen, **changes}.items() if value is not None})
            assert isinstance(reply, dict), reply
            assert np.array_equal(reply["actions"], expected(seen)), changes.keys()
            assert reply["server_timing"]["epoch"] == 1, "the policy gets the same: the session goes on"


async def test_roboarena_has_endpoints_and_sessions(checkpoint, stub: Path):
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        assert robot.metadata["image_resolution"] == [SIDE, SIDE] and robot.metadata["needs_session_id"] is False
        epochs = []
        for changes in (
            {"endpoint": "infer", "session_id": "a"},
            {"endpoint": "infer", "session_id": "a"},
            {"endpoint": "infer", "session_id": "b"},
        ):
            reply = await robot.ask(observation(**changes))
            assert np.array_equal(reply["actions"], expected(observation()))
            epochs.append(reply["server_timing"]["epoch"])
        assert await robot.ask({"endpoint": "reset"}) == "reset successful"
        epochs.append((await robot.ask(observation(endpoint="infer")))["server_timing"]["epoch"])
        assert epochs == [1, 1, 2, 3]
        text = await rejected_with(robot, observation(endpoint="kill"), Reason.BODY_FIELD, "endpoint")
        assert "infer or reset" in text
        await rejected_with(robot, observation(endpoint=np.zeros(2)), Reason.BODY_FIELD, "endpoint")


async def test_vllm_s_path_speaks_only_msgpack(checkpoint, stub: Path):
    async with service(checkpoint, stub) as served:
        async with openpi_robot(robots_address(served), VLLM_PATH) as robot:
            reply = await robot.ask(observation(endpoint="infer", seed=3), ArrayCoding.VLLM)
            assert np.array_equal(reply["actions"], expected(observation()))
            assert await robot.ask({"endpoint": "reset"}) == {"status": "reset successful"}
            for bad in (b"\xc1", "text", observation(endpoint="other"), {"prompt": "go"}):
                reply = await robot.ask(bad)
                assert reply.keys() == {"type", "message"} and reply["type"] == "error"
                assert reply["message"].startswith("REJECTED ") and "\n" not in reply["message"]
            assert np.array_equal(await robot.act(), expected(observation()))
        async with openpi_robot(robots_address(served), "/openpi/policy") as robot:
            assert np.array_equal(await robot.act(), expected(observation()))


async def test_starvla_s_envelope_comes_back_with_each_answer(checkpoint, stub: Path):
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        assert robot.metadata["available_unnorm_keys"] and robot.metadata["action_chunk_size"] == HORIZON
        for kind in ("ping", "init"):
            reply = await robot.ask({"type": kind, "request_id": 1, "payload": None})
            assert reply == {"status": "ok", "ok": True, "type": kind, "request_id": 1, "data": {}}
        reply = await robot.ask({"type": "infer", "request_id": "r2", "payload": observation(grey=3)})
        assert (reply["status"], reply["ok"], reply["type"], reply["request_id"]) == ("ok", True, "infer", "r2")
        assert np.array_equal(reply["data"]["actions"], expected(observation(grey=3)))
        reset = await robot.ask({"type": "reset", "request_id": 3, "payload": {}})
        assert reset["data"] == {"status": "reset successful"}
        again = await robot.ask({"type": "infer", "request_id": 4, "payload": observation(grey=3)})
        assert again["data"]["server_timing"]["epoch"] == 2
        for bad, field in (
            ({"type": "dance", "request_id": 5, "payload": {}}, "type"),
            ({"type": "infer", "request_id": 5, "payload": [1]}, "payload"),
            ({"type": "infer", "request_id": 5, "payload": np.zeros(2)}, "payload"),
            ({"type": np.zeros(2), "request_id": 5, "payload": {}}, "type"),
            ({"type": "infer", "request_id": 5, "payload": {"prompt": "go"}}, "image"),
        ):
            reply = await robot.ask(bad)
            if isinstance(reply, str):  # what it was is not known
                assert field in reply
                continue
            assert (reply["ok"], reply["status"], reply["request_id"]) == (False, "error", 5)
            assert field in reply["error"]["message"] and "actions" not in reply


async def test_a_key_called_type_makes_no_envelope(checkpoint, stub: Path):
    """Names of robots' values are theirs to choose."""
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        for value in (np.zeros(3), "arm", 1, None):
            assert np.array_equal(await robot.act(type=value), expected(observation()))


BAD: list[tuple[Any, Reason, str]] = [
    ("text", Reason.MESSAGE_UNPARSABLE, "message"),
    (b"", Reason.BODY_UNPARSABLE, "message"),
    (b"\xc1", Reason.BODY_UNPARSABLE, "message"),
    (b"\xde\xff\xff", Reason.BODY_VALUES, "message"),
    (pack([1], ArrayCoding.OPENPI), Reason.BODY_SHAPE, "message"),
    (observation(prompt=""), Reason.TEXT_EMPTY, "prompt"),
    (observation(prompt="a\x00b"), Reason.TEXT_BAD_CHARACTER, "prompt"),
    (observation(prompt=b"\xff"), Reason.TEXT_BAD_CHARACTER, "prompt"),
    (observation(prompt="a" * 5000), Reason.TEXT_TOO_LONG, "4096"),
    (
        observation(**{"observation/image": np.zeros((SIDE, SIDE), np.uint8)}),
        Reason.IMAGE_WRONG_SIZE,
        "observation/image",
    ),
    (
        observation(**{"observation/image": np.zeros((SIDE, SIDE, 4), np.uint8)}),
        Reason.IMAGE_WRONG_SIZE,
        "observation/image",
    ),
    (
        observation(**{"observation/image": np.zeros((SIDE, SIDE, 3), np.int32)}),
        Reason.IMAGE_WRONG_FORMAT,
        "observation/image",
    ),
    (
        observation(**{"observation/image": np.full((SIDE, SIDE, 3), np.nan)}),
        Reason.IMAGE_WRONG_FORMAT,
        "observation/image",
    ),
    (
        observation(**{"observation/image": np.full((SIDE, SIDE, 3), 255.0)}),
        Reason.IMAGE_WRONG_FORMAT,
        "observation/image",
    ),
    (observation(**{"observation/image": np.zeros((0, SIDE, 3), np.uint8)}), Reason.INPUT_SIZE, "16x0"),
    (observation(**{"observation/image": np.zeros((8, 8, 3), np.uint8)}), Reason.INPUT_SIZE, "observation"),
    (observation(**{"observation/state": np.array([0, np.nan])}), Reason.PROPRIO_NOT_FINITE, "observation/state[1]"),
    (observation(**{"observation/state": np.array([1e30, 0])}), Reason.PROPRIO_OUT_OF_RANGE, "observation/state[0]"),
    (observation(**{"observation/state": np.zeros(3)}), Reason.INPUT_SIZE, "observation"),
    (observation(**{"observation/state": np.zeros(2, bool)}), Reason.STATE_COUNT, "observation/state"),
    (observation(**{"observation/state": np.zeros(5000)}), Reason.INPUT_SIZE, "5000"),
    ({"observation/state": np.zeros(2), "prompt": "go"}, Reason.INPUT_MISSING, "image"),
    ({"observation/image": np.zeros((SIDE, SIDE, 3), np.uint8), "prompt": "go"}, Reason.INPUT_MISSING, "state"),
    ({"observation/image": np.zeros((SIDE, SIDE, 3), np.uint8)}, Reason.TEXT_EMPTY, "prompt"),
    (observation(unnorm_key="k" * 65), Reason.BAD_NAME, "unnorm_key"),
]


async def test_bad_messages_get_one_line_and_the_connection_stays_open(checkpoint, stub: Path):
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        for value, reason, field in BAD:
            await rejected_with(robot, value, reason, field)
        assert len(served.events("session_opened")) == 1, "refusals open nothing and end nothing"


async def test_object_arrays_are_rejected_before_they_are_built(checkpoint, stub: Path):
    forms = [
        {"__ndarray__": True, "data": b"\0" * 8, "dtype": "|O", "shape": [1]},
        {"nd": True, "type": "|O", "kind": "O", "data": b"\0" * 8, "shape": [1]},
        {"nd": True, "type": "|V8", "kind": "V", "data": b"\0" * 8, "shape": [1]},
    ]
    async with service(checkpoint, stub) as served, openpi_robot(robots_address(served)) as robot:
        for form in forms:
            await rejected_with(robot, msgpack.packb({"prompt": "go", "state": form}), Reason.ARRAY_TYPE, "state")


async def test_too_many_rejections_end_the_connection(checkpoint, stub: Path):
    async with service(checkpoint, stub, limits__rejected_frames=5) as served:
        async with openpi_robot(robots_address(served)) as robot:
            with pytest.raises(ConnectionClosed) as caught:
                for _ in range(10):
                    await robot.rejected("text")
            assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
            assert "rejected messages" in caught.value.rcvd.reason
        async with openpi_robot(robots_address(served)) as robot:
            assert np.array_equal(await robot.act(), expected(observation()))


STRANGE: list[Any] = [
    None, True, -1, 2**63, 1.5, float("nan"), "x", "", b"\xff", [], [1], {}, {b"__ndarray__": True},
    {"nd": True, "type": "<f4", "data": b""}, np.zeros(2, np.float32), np.zeros((SIDE, SIDE, 3), ">u2"), [np.zeros(2)],
]  # fmt: skip
KEYS = ("observation/image", "observation/state", "prompt", "type", "payload", "endpoint", "session_id", "x", "images")


def damaged(rng: np.random.Generator) -> bytes:
    """A message with strange values in the place of some, and sometimes with other bytes."""
    seen = observation(grey=int(rng.integers(256)))
    for _ in range(rng.integers(1, 4)):
        value = STRANGE[rng.integers(len(STRANGE))] if rng.random() < 0.8 else observation()
        seen[KEYS[rng.integers(len(KEYS))]] = value
    data = bytearray(pack(seen, list(ArrayCoding)[rng.integers(3)]))
    if rng.random() < 0.3:
        data[rng.integers(min(len(data), 200))] = rng.integers(256)
    return bytes(data)


@pytest.mark.parametrize("count", [150, by_night(3_000)])
async def test_damaged_messages_are_answered_and_never_internal_errors(checkpoint, stub: Path, count: int):
    rng = np.random.default_rng(count)
    async with service(checkpoint, stub, limits__rejected_frames=100_000) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address, VLLM_PATH) as other:
            for _ in range(count):
                reply = await (robot, other)[rng.integers(2)].ask(damaged(rng))
                assert isinstance(reply, dict | str)
            assert np.array_equal(await robot.act(grey=5), expected(observation(grey=5)))


def test_arms_may_have_cameras_and_vectors_of_the_same_names():
    left, right = np.zeros((2, 2, 3), np.uint8), np.ones((2, 2, 3), np.uint8)
    arms = {"left": {"rgb": left, "joints": np.zeros(2)}, "right": {"rgb": right, "joints": np.ones(2)}, "prompt": "go"}
    seen = seen_of({**arms, "head": {"depth_rgb": left}})
    assert {name: image[0, 0, 0] for name, image in seen.images.items()} == {
        "left.rgb": 0,
        "right.rgb": 1,
        "depth_rgb": 0,
    }
    assert {name: vector[0] for name, vector in seen.state.items()} == {"left.joints": 0, "right.joints": 1}
