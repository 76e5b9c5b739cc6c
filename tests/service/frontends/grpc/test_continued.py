"""Real-time chunking and the trajectory contract over a real socket, with a scripted worker and with a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import msgpack
import numpy as np
import pytest

from edgeflow.ipc.messages import OpenSession
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Candidate, ChunkReport, Limited, LimitKind, Playing, Seam
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.act.twin import STATE, TwinSize
from tests.service.frontends.grpc.test_observations import observation, opening, wide_script
from tests.service.frontends.test_act import body
from tests.service.harness import eventually, frame_message, open_message, serving
from tests.service.scripted import Script
from tests.service.worker.test_real_worker import OWN

REPORT = ChunkReport(
    continues=1,
    conditioned_steps=1,
    seam=Seam.CONTINUED,
    limited=(Limited(dimension="x", limit=LimitKind.JERK, beyond=2.0, changed=0.5),),
    candidates=(
        Candidate(score=2.0, distance=1.0, roughness=1.0, beyond=0.0),
        Candidate(score=1.0, distance=0.5, roughness=0.5, beyond=0.0),
    ),
    chosen=1,
)


def continuing():
    return wide_script(
        continues=True, bridged_rows=1, report=lambda frame: REPORT if frame.playing is not None else ChunkReport()
    )


async def test_the_chunk_in_execution_reaches_the_worker_and_reports_the_robot(checkpoint):
    script = continuing()
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        opened = await robot.open(**opening(chunks=True, execution=pb.EXECUTION_CONTINUE))
        assert opened.execution == pb.EXECUTION_CONTINUE
        await robot.frame(1, **observation(resting=True))
        assert (await robot.action(1)).continues == 0
        arrived = pb.Arrived(seq=1, age_ns=70_000_000_000)
        await robot.frame(2, **observation(playing=pb.Playing(seq=1, step=0), arrived=arrived))
        action = await robot.action(2)
        first, second = served.script.worker.submitted()
        assert (first.playing, second.playing) == (None, Playing(1, 0))
        assert 0 < first.delay_ns < 60_000_000_000 < second.delay_ns <= 63_000_000_000  # no row is executed later
        assert (action.continues, action.conditioned_steps, action.chosen) == (1, 1, 1)
        assert list(action.limited) == [pb.Limited(dimension="x", limit="jerk", beyond=2.0, changed=0.5)]
        assert [each.score for each in action.candidates] == [2.0, 1.0]
        late = pb.Arrived(seq=2, age_ns=1_000_000_001)
        await robot.frame(3, **observation(playing=pb.Playing(seq=7, step=0), arrived=late))
        assert (await robot.action(3)).continues == 0
        assert served.metric("edgeflow_unknown_chunks_total") == served.metric("edgeflow_late_chunks_total") == 1
        await robot.send(pb.ClientMessage(close=pb.Close()))
        await robot.rest()
        await eventually(lambda: served.metric("edgeflow_chunk_seams_total", seam="continued") == 1)
        assert served.metric("edgeflow_limited_chunks_total", limit="jerk") == 1


async def test_a_frame_in_flight_at_a_hold_does_not_start_the_robot_in_mid_motion(checkpoint):
    async with serving(checkpoint, continuing(), timing__silent_hold_ms=60_000) as served:
        robot, script = served.robot(), served.script
        await robot.open(**opening(chunks=True))
        await robot.frame(1, **observation())
        await robot.action(1)
        script.hold = True
        for seq in (2, 3):
            await robot.frame(seq, **observation(playing=pb.Playing(seq=1, step=0)))
            await eventually(lambda expected=seq - 1: len(script.worker.held) == expected)
        script.valid = False
        script.worker.release()
        await robot.hold("POLICY_OUTPUT_INVALID")
        script.valid, script.hold = True, False
        script.worker.release()
        status = await robot.status(3)
        assert (status.code, status.reason) == ("ABORTED", "POLICY_OUTPUT_INVALID")
        await robot.frame(4, **observation(playing=pb.Playing(seq=1, step=0)))
        assert (await robot.action(4)).continues == 0
        acted = [m.action.seq for m in robot.seen if m.action.command == pb.COMMAND_ACT]
        assert acted == [1, 4]
        dropped = {"disposition": "dropped", "reason": "POLICY_OUTPUT_INVALID"}
        await eventually(lambda: served.metric("edgeflow_frames_total", **dropped) == 2)


@pytest.mark.parametrize(
    ("asked", "continues"),
    [
        ({}, False),
        ({"chunks": False}, False),
        ({"execution": pb.EXECUTION_FRESH}, False),
        ({"execution": pb.EXECUTION_REST}, False),
        ({"execution": pb.EXECUTION_AUTO}, True),
    ],
    ids=["unset", "single actions", "fresh", "rest", "auto"],
)
async def test_chunks_are_continued_for_those_who_ask_for_it(checkpoint, asked, continues):
    script = continuing()
    async with serving(checkpoint, script) as served:
        opened = await served.robot().open(**opening(chunks=True) | asked)
        expected = asked.get("execution", pb.EXECUTION_UNSPECIFIED)
        assert opened.execution == (pb.EXECUTION_CONTINUE if continues else expected)
        (request,) = [each for each in script.worker.seen if isinstance(each, OpenSession)]
        assert request.continues is continues


@pytest.mark.parametrize(
    ("mode", "packed_ms", "expected"),
    [
        (pb.MODE_SPECULATIVE, 200, pb.EXECUTION_REST),
        (pb.MODE_SPECULATIVE, 20, pb.EXECUTION_FRESH),
        (pb.MODE_SERIAL, 200, pb.EXECUTION_FRESH),
    ],
)
async def test_a_robot_rests_where_drafts_are_verified_in_long_passes(checkpoint, mode, packed_ms, expected):
    script = Script(pass_ns=tuple(share * packed_ms * 10_000 for share in (90, 180, 100, 5, 6)))
    async with serving(checkpoint, script) as served:
        asked = {"mode": mode, "chunks": True, "execution": pb.EXECUTION_AUTO, "control_period_ms": 1000}
        assert (await served.robot().open(**asked)).execution == expected


async def test_a_robot_that_knows_nothing_of_executions_is_answered_for_every_frame_as_before(checkpoint):
    async with serving(checkpoint, continuing()) as served:
        robot = served.robot()
        opened = await robot.open(**opening(chunks=True))
        for seq in (1, 2):  # a resting robot that asked for an execution would get an answer to the first one only
            await robot.frame(seq, **observation(resting=True))
            action = await robot.action(seq)
            assert (action.execution, action.rate, action.rows, action.from_arrival) == (0, 0.0, 0, False)
            assert action.valid_for_ms == opened.valid_for_ms == 250


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        ({"execution": pb.EXECUTION_REST}, grpc.StatusCode.INVALID_ARGUMENT, "EXECUTION_WITHOUT_CHUNKS"),
        ({"execution": 77, "chunks": True}, grpc.StatusCode.INVALID_ARGUMENT, "EXECUTION_UNKNOWN"),
        (
            {"execution": pb.EXECUTION_CONTINUE, "chunks": True},
            grpc.StatusCode.FAILED_PRECONDITION,
            "EXECUTION_UNAVAILABLE",
        ),
        (
            {"execution": pb.EXECUTION_SLOW, "chunks": True},
            grpc.StatusCode.FAILED_PRECONDITION,
            "EXECUTION_UNAVAILABLE",
        ),
    ],
)
async def test_an_execution_that_cannot_be_had_is_rejected_with_its_field(checkpoint, asked, status, reason):
    script = wide_script()
    script.schema = replace(script.schema, units=("m/s", "m/s", "fraction"))  # velocities, which are not slowed down
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.send(pb.ClientMessage(open=open_message(**opening(**asked))))
        assert (await robot.rest())[0] is status
        trailers = dict(await robot.call.trailing_metadata())
        assert (trailers["edgeflow-reason"], trailers["edgeflow-field"]) == (reason, "open.execution")


async def test_a_single_action_continues_nothing_and_says_what_was_limited(checkpoint):
    script = continuing()
    script.report = lambda _: replace(REPORT, continues=0, conditioned_steps=0)
    async with serving(checkpoint, script) as served, httpx.AsyncClient(base_url=served.http) as http:
        frame = frame_message(5, **observation(playing=pb.Playing(seq=4, step=0)))
        answer = await served.act(pb.ActRequest(open=open_message(**opening(chunks=True)), frame=frame))
        assert [each.limit for each in answer.action.limited] == ["jerk"]
        headers = {"content-type": "application/msgpack"}
        posted = await http.post("/v1/act", content=msgpack.packb(body()), headers=headers)
        answer = msgpack.unpackb(posted.content)
        assert answer["limited"] == [{"dimension": "x", "limit": "jerk", "beyond": 2.0, "changed": 0.5}]
        assert (len(answer["candidates"]), answer["chosen"]) == (2, 1)
        assert [frame.playing for frame in served.script.worker.submitted()] == [None, None]
        assert served.metric("edgeflow_unknown_chunks_total") == 1


@pytest.fixture(scope="module")
def act(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("act") / "act")


async def test_limits_of_the_configuration_hold_in_and_between_the_chunks_of_a_real_worker(act: Path):
    size = TwinSize()
    limits = {"a0": {"velocity": 0.01, "state": f"{STATE}[0]"}}
    settings = {"policy": {"control_rate_hz": 1.0}, "trajectory": {"limits": limits}, "mode": "serial"}
    async with serving(act, OWN, **settings) as served:
        robot = served.robot()
        cameras = [
            pb.Camera(name=name, width=sides[1], height=sides[0], format=pb.IMAGE_FORMAT_RGB8)
            for name, sides in size.cameras.items()
        ]
        state = [pb.StateVector(name=name, size=count) for name, count in size.vectors.items()]
        opened = await robot.open(cameras=cameras, state=state, chunks=True)
        assert opened.execution == pb.EXECUTION_UNSPECIFIED
        images = [pb.Image(data=bytes([90]) * (3 * sides[0] * sides[1])) for sides in size.cameras.values()]
        numbers = [0.25] * sum(size.vectors.values())
        lines = []
        for seq in (1, 2):
            playing = pb.Playing(seq=1, step=0) if seq == 2 else None
            stamp_ns = 1_000_000_000 + seq
            await robot.frame(seq, stamp_ns=stamp_ns, images=images, proprio=numbers, playing=playing)
            action = await robot.action(seq)
            lines.append(np.reshape(action.values, (opened.schema.horizon, -1))[:, 0])
            assert [(each.dimension, each.limit) for each in action.limited] == [("a0", "velocity")]
            assert action.continues == seq - 1
        first, second = lines
        assert np.abs(np.diff([0.25, *first])).max() <= 0.01 * (1 + 1e-9)
        delay = action.conditioned_steps
        assert delay >= 1 and np.abs(np.diff([*first[:delay], *second[delay:]])).max() <= 0.01 * (1 + 1e-9)
