"""Depth, forecasts and admission over the wire, and what happens when the device slows down."""

from __future__ import annotations

import grpc
import pytest

from edgeflow.ipc.messages import ChangePace, OpenSession
from edgeflow.service.worker import supervisor
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import eventually, open_message, serving
from tests.service.scripted import Script

CODE = grpc.StatusCode
MS = 1_000_000
PASSES = tuple(value * MS for value in (10, 18, 12, 4, 5))  # K = 3: serial 18 ms, pipelined 12 a frame and 36 old


def opened_with(script: Script) -> list[int]:
    return [message.pace.depth for message in script.worker.seen if isinstance(message, OpenSession)]


@pytest.mark.parametrize(
    ("asked", "depth", "mode"),
    [
        ({"mode": pb.MODE_SERIAL}, 1, pb.MODE_SERIAL),
        ({"mode": pb.MODE_PIPELINED}, 3, pb.MODE_PIPELINED),
        ({"mode": pb.MODE_DEPTH, "depth": 2}, 2, pb.MODE_DEPTH),
        ({"mode": pb.MODE_AUTO, "control_period_ms": 8, "max_action_age_ms": 60}, 0, pb.MODE_SPECULATIVE),
        ({"mode": pb.MODE_AUTO, "control_period_ms": 8, "max_action_age_ms": 30}, 1, pb.MODE_SERIAL),
        ({"mode": pb.MODE_AUTO}, 0, pb.MODE_SPECULATIVE),
        ({}, 0, pb.MODE_SPECULATIVE),
    ],
)
async def test_the_worker_runs_the_announced_depth(checkpoint, asked, depth: int, mode: int):
    script = Script(pass_ns=PASSES)
    async with serving(checkpoint, script, max_action_age_ms=0, limits={"rate_hz": 200.0}) as served:
        opened = await served.robot().open(**asked)
        assert (opened.depth, opened.mode) == (depth, mode)
        assert opened_with(script) == [depth]
        assert opened.predicted_fps > 0 and opened.predicted_age_ms > 0
        assert served.metric("edgeflow_predicted_fps", mode="pipelined") == pytest.approx(1000 / 12, rel=0.05)
        assert served.metric("edgeflow_predicted_age_seconds", mode="serial") == pytest.approx(0.018, rel=0.05)


async def test_the_start_tells_what_is_assumed_of_frames_that_draft(checkpoint):
    async with serving(checkpoint, Script(pass_ns=PASSES)) as served:
        names = [name for name, _, _ in served.service.status.forecasts]
        assert names == ["serial", "depth 2", "pipelined", "speculative (assuming 3 passes per action)"]
        assert served.metric("edgeflow_predicted_age_seconds", mode="speculative") == pytest.approx(0.036, rel=0.05)


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"mode": pb.MODE_AUTO, "max_action_age_ms": 12}, CODE.FAILED_PRECONDITION, "the lowest possible is 2"),
        ({"mode": pb.MODE_DEPTH, "depth": 4}, CODE.INVALID_ARGUMENT, "open.depth: is 4; this model takes 1 to 3"),
        ({"mode": pb.MODE_SERIAL, "depth": 2}, CODE.INVALID_ARGUMENT, "open.depth: may only be set with mode depth"),
    ],
)
async def test_invalid_values_are_rejected(checkpoint, asked, code, said: str):
    async with serving(checkpoint, Script(pass_ns=PASSES)) as served:
        robot = served.robot()
        await robot.send(_open(asked))
        status, text = await robot.rest()
        assert status is code and said in text


async def test_the_session_that_does_not_fit_is_rejected_and_the_others_stay(checkpoint):
    async with serving(checkpoint, Script(pass_ns=PASSES)) as served:
        first = served.robot()
        await first.open(mode=pb.MODE_SERIAL, control_period_ms=20)
        late = served.robot()
        await late.send(_open({"mode": pb.MODE_SERIAL, "control_period_ms": 20}))
        status, text = await late.rest()
        assert status is CODE.RESOURCE_EXHAUSTED and "beside 1 open session with" in text
        assert served.metric("edgeflow_admission_rejected_total", reason="DEVICE_FULL") == 1
        await first.frame(1)
        assert (await first.action(1)).command == pb.COMMAND_ACT


async def test_a_device_that_slows_down_changes_the_depth_of_auto_sessions(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "PING_S", 0.02)
    script = Script(pass_ns=PASSES)
    async with serving(checkpoint, script, limits={"rate_hz": 200.0}) as served:
        robot = served.robot()
        opened = await robot.open(mode=pb.MODE_AUTO, control_period_ms=8, max_action_age_ms=60)
        assert opened.mode == pb.MODE_SPECULATIVE
        script.ran = (18 * MS, 1, 2)  # 54 ms in three passes, and the wait for the first
        notice = await robot.notice("depth")
        assert "instead of speculative" in notice.text
        await eventually(lambda: any(isinstance(message, ChangePace) for message in script.worker.seen))
        (change,) = [message for message in script.worker.seen if isinstance(message, ChangePace)]
        assert 1 <= change.pace.depth < 3
        assert served.metric("edgeflow_predicted_fps", mode="pipelined") == pytest.approx(1000 / 18, rel=0.05)
        await robot.frame(1)
        assert (await robot.action(1)).command == pb.COMMAND_ACT


def _open(changes: dict[str, int]) -> pb.ClientMessage:
    return pb.ClientMessage(open=open_message(**changes))
