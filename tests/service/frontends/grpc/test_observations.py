"""Whole observations in, chunks out: three cameras, state, and answers of several actions, over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import numpy as np
import pytest
import simplejpeg

from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.sessions import runner
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import StateSpec
from tests.service.harness import RunningService, WireRobot, frame_message, serving
from tests.service.scripted import SCHEMA, Script

HORIZON, STEP_MS = 4, 1000.0
ROWS = [[0.1 * row, -0.1 * row, 1.0] for row in range(HORIZON)]
NEEDS = PolicyInputs(
    cameras=tuple(CameraNeed(name=f"observation.images.{name}") for name in ("top", "left", "wrist")),
    state=(StateSpec(name="observation.state", size=2, elements=("shoulder", "elbow"), units=("rad", "rad")),),
)
SIZES = {"wrist": (16, 8), "top": (24, 16), "spare": (8, 8), "left": (8, 24)}
STATE = [
    pb.StateVector(name="gripper", size=1),
    pb.StateVector(name="state", size=2, elements=["shoulder", "elbow"], units=["rad", "rad"]),
]


def wide_script(**changes) -> Script:
    """A worker with a policy of three cameras and a state that answers with four actions."""
    schema = replace(SCHEMA, relative=(False,) * 3, horizon=HORIZON, step_ms=STEP_MS)
    return Script(values=lambda _: [value for row in ROWS for value in row], inputs=NEEDS, schema=schema, **changes)


def picture(name: str, level: int) -> bytes:
    width, height = SIZES[name]
    data: bytes = simplejpeg.encode_jpeg(np.full((height, width, 3), level, np.uint8), quality=100)
    return data


def opening(**changes) -> dict:
    cameras = [pb.Camera(name=name, width=w, height=h, format=pb.IMAGE_FORMAT_JPEG) for name, (w, h) in SIZES.items()]
    return {"cameras": cameras, "state": STATE, **changes}


def observation(**changes) -> dict:
    """Each camera shows its own grey."""
    images = [pb.Image(camera=name, data=picture(name, 50 * place)) for place, name in enumerate(SIZES)]
    return {"images": images, "proprio": [0.5, 1.25, -0.25], **changes}


@contextlib.asynccontextmanager
async def robot_of(
    checkpoint, script: Script | None = None, **overrides
) -> AsyncIterator[tuple[WireRobot, RunningService]]:
    async with serving(checkpoint, script or wide_script(), **overrides) as served:
        yield served.robot(), served


async def test_all_cameras_and_the_state_reach_the_policy_in_its_order(checkpoint):
    async with robot_of(checkpoint) as (robot, served):
        opened = await robot.open(**opening(chunks=True))
        assert (opened.schema.horizon, opened.schema.step_ms) == (HORIZON, STEP_MS)
        await robot.frame(1, **observation())
        action = await robot.action(1)
        assert np.array_equal(np.reshape(action.values, (HORIZON, 3)), ROWS)
        assert (action.horizon, action.step_ms) == (HORIZON, STEP_MS)
        (frame,) = served.script.worker.submitted()
        assert frame.state == [1.25, -0.25] and frame.sizes == [16, 24, 24, 8, 8, 16]
        levels = [np.unique(np.frombuffer(image.data, np.uint8)) for image in frame.images()]
        assert [level.tolist() for level in levels] == [[50], [150], [0]]


async def test_cameras_that_the_policy_does_not_need_are_checked_and_not_decoded(checkpoint, monkeypatch):
    decoded = []

    def counting(frame, opened):
        decoded.append([camera.name for camera in opened.policy_cameras])
        return decode(frame, opened)

    decode = runner.decode_frame
    monkeypatch.setattr(runner, "decode_frame", counting)
    async with robot_of(checkpoint) as (robot, _):
        await robot.open(**opening())
        images = observation()["images"]
        images[2].data = images[2].data[:40]
        await robot.frame(1, **observation(images=images))
        status = await robot.status(1)
        assert (status.reason, status.code) == ("IMAGE_TRUNCATED", "DATA_LOSS")
        await robot.frame(2, **observation())
        await robot.action(2)
        assert decoded == [["top", "left", "wrist"]]


async def test_the_pixels_that_leave_are_those_that_were_decoded(checkpoint, monkeypatch):
    decoded, handed = [], []
    decode = runner.decode_frame

    def remembering(frame, opened):
        decoded.extend(decode(frame, opened))
        return tuple(decoded)

    monkeypatch.setattr(runner, "decode_frame", remembering)
    async with robot_of(checkpoint) as (robot, served):
        link = served.service.supervisor._life.link
        send = link.send
        monkeypatch.setattr(link, "send", lambda message: handed.append(message) or send(message))
        await robot.open(**opening())
        await robot.frame(1, **observation())
        await robot.action(1)
        (frame,) = [message for message in handed if hasattr(message, "sizes")]
        assert all(one is other for one, other in zip(frame.payload, decoded, strict=True))


async def test_a_client_without_chunks_gets_the_row_that_is_due(checkpoint):
    async with robot_of(checkpoint) as (robot, _):
        opened = await robot.open(**opening(max_action_age_ms=60_000))
        assert (opened.schema.horizon, opened.schema.step_ms) == (1, 0.0)
        await robot.frame(1, **observation())
        action = await robot.action(1)
        step = min(int(action.timings.server_ns / 1e6 / STEP_MS), HORIZON - 1)
        assert list(action.values) == ROWS[step] and (action.horizon, action.step_ms) == (1, 0.0)
        assert action.max_age_ms == 60_000 + step * STEP_MS


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        (ROWS[0] * HORIZON, replace(SCHEMA, horizon=HORIZON, step_ms=STEP_MS)),
        ([*ROWS[0] * 3, 0.0, 0.0, 1.5], replace(SCHEMA, horizon=HORIZON, step_ms=STEP_MS)),
    ],
)
async def test_a_chunk_with_one_bad_row_is_withheld(checkpoint, values: list[float], schema):
    script = Script(values=lambda _: values, inputs=NEEDS, schema=schema)
    async with robot_of(checkpoint, script) as (robot, _):
        await robot.open(**opening(chunks=True))
        await robot.frame(1, **observation())
        if max(values) <= 1.0:
            await robot.action(1)
        else:
            await robot.hold("POLICY_OUTPUT_INVALID")


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"cameras": opening()["cameras"][1:]}, "open.cameras", "INPUT_MISSING"),
        ({"state": []}, "open.state", "INPUT_MISSING"),
        ({"state": [pb.StateVector(name="state", size=3)]}, "open.state", "INPUT_SIZE"),
        ({"state": [pb.StateVector(name="state", size=2, units=["deg", "deg"])]}, "open.state", "INPUT_UNIT"),
        ({"state": [], "proprio_names": ["elbow", "shoulder"]}, "open.state", "INPUT_ORDER"),
    ],
)
async def test_a_session_without_what_the_policy_needs_is_rejected(checkpoint, changes: dict, field: str, reason: str):
    async with robot_of(checkpoint) as (robot, served):
        await robot.send(pb.ClientMessage(open=pb.Open(instruction="go", control_period_ms=50, **opening(**changes))))
        code, details = await robot.rest()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(f"{field}: ") and "the policy needs" in details and "the robot sends" in details
        trailers = dict(await robot.call.trailing_metadata())
        assert trailers["edgeflow-reason"] == reason
        assert served.metric("edgeflow_admission_rejected_total", reason=reason) == 1


@pytest.mark.parametrize("character", ["a", "é", "漢", "𠀀", "%"])
async def test_a_rejection_reaches_the_robot_whatever_the_names_of_its_joints(checkpoint, character: str):
    size = 40
    state = (StateSpec(name="observation.state", size=size, elements=tuple(f"joint_{i}" for i in range(size))),)
    script = replace(wide_script(), inputs=replace(NEEDS, state=state))
    joints = [pb.StateVector(name=f"{character * 60}{index:03}", size=1) for index in range(size)]
    async with robot_of(checkpoint, script) as (robot, _):
        message = pb.Open(instruction="go", control_period_ms=50, **opening(state=joints))
        await robot.send(pb.ClientMessage(open=message))
        code, details = await robot.rest()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "the policy needs" in details
        assert dict(await robot.call.trailing_metadata())["edgeflow-reason"] == "INPUT_MISSING"


async def test_scalars_and_configured_names_are_mapped(checkpoint):
    mapping = {"left": "spare"}
    async with robot_of(checkpoint, cameras=mapping) as (robot, served):
        await robot.open(**opening(state=[], proprio_names=["shoulder", "elbow", "gripper"]))
        await robot.frame(1, **observation())
        await robot.action(1)
        (frame,) = served.script.worker.submitted()
        assert frame.state == [0.5, 1.25] and frame.sizes == [16, 24, 8, 8, 8, 16]


async def test_a_reported_chunk_that_was_never_sent_is_counted_and_ignored(checkpoint):
    async with robot_of(checkpoint) as (robot, served):
        await robot.open(**opening(chunks=True))
        reports = [None, (1, 3), (1, HORIZON), (7, 0), (2, 0)]
        for seq, playing in enumerate(reports, start=1):
            told = {"playing": pb.Playing(seq=playing[0], step=playing[1])} if playing else {}
            await robot.frame(seq, **observation(**told))
            await robot.action(seq)
        assert served.metric("edgeflow_unknown_chunks_total") == 2


async def test_a_single_action_by_grpc_has_the_form_that_its_request_asks_for(checkpoint):
    async with robot_of(checkpoint) as (_, served):
        for chunks in (False, True):
            opened = pb.Open(instruction="go", **opening(chunks=chunks))
            answer = await served.act(pb.ActRequest(open=opened, frame=frame_message(1, **observation())))
            assert answer.schema.horizon == answer.action.horizon == (HORIZON if chunks else 1)
            assert len(answer.action.values) == 3 * answer.action.horizon


@pytest.mark.parametrize("chunks", [False, True])
async def test_single_actions_of_displacements_are_rejected(checkpoint, chunks: bool):
    """A row of displacements goes on from the one before it, so that it alone leads elsewhere."""
    script = wide_script()
    script.schema = replace(script.schema, relative=(True, True, False))
    async with robot_of(checkpoint, script) as (robot, _):
        if chunks:
            assert (await robot.open(**opening(chunks=True))).schema.horizon == HORIZON
            return
        await robot.send(
            pb.ClientMessage(open=pb.Open(instruction="go", control_period_ms=50, **opening(chunks=False)))
        )
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        trailers = dict(await robot.call.trailing_metadata())
        assert trailers["edgeflow-reason"] == "CHUNKS_NEEDED"
