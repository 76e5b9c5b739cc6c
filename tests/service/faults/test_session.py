"""Invalid outputs and silence: what a session does, and that its stream survives both."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import grpc
import pytest

from edgeflow.contract import Chunk
from edgeflow.ipc.messages import CloseSession, FrameResult, OpenSession
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent, StatusEvent
from edgeflow.service.sessions.session import Session
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command
from tests.service.harness import WireRobot, eventually, serving
from tests.service.scripted import SCHEMA, Script
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

BAD = (math.nan, math.inf, -math.inf, 1.5, -7.0, 1e38)


class InstantSession:
    """A session whose decoder and worker answer at once."""

    def __init__(self) -> None:
        self.session = Session(1, REQUEST, SCHEMA, RULES, 0)
        self.seq = 0
        self.events: list[ActionEvent | StatusEvent] = []

    def frame(self, values: list[float], *, valid: bool = True) -> None:
        session = self.session
        self.seq += 1
        now_ns = self.seq * 100 * MS
        session.admit(self.seq, now_ns, now_ns)
        session.offer(CheckedFrame(seq=self.seq, stamp_ns=now_ns, images=(b"",)), now_ns)
        if session.start_decoding(now_ns, alone=True) is not None:
            session.decoded(b"rgb", 1)
        submitted = session.start_sending(now_ns)
        if submitted is not None:
            session.result(
                FrameResult(
                    session=1,
                    epoch=submitted.epoch,
                    seq=submitted.seq,
                    chunk=Chunk(tuple(values)),
                    token_ids=[1, 2, 3],
                    valid=valid,
                    queue_ns=1,
                    inference_ns=1,
                    passes=1,
                    settled=3,
                )
            )
        self.events += session.take(now_ns)

    def commands(self) -> list[tuple[Command, str]]:
        return [(event.command, event.reason) for event in self.events if isinstance(event, ActionEvent)]

    def statuses(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, StatusEvent)]


def test_no_invalid_output_of_ten_thousand_is_sent():
    loop, chance = InstantSession(), random.Random(5)
    good = [0.25, -0.5, 1.0]
    for _ in range(10_000):
        bad = list(good)
        bad[chance.randrange(3)] = chance.choice(BAD)
        loop.frame(bad if chance.random() < 0.9 else good, valid=False)
        loop.session.reset()
    assert loop.session.ended is None
    assert {command for command, _ in loop.commands()} == {Command.HOLD}
    assert loop.statuses().count("POLICY_OUTPUT_INVALID") == 10_000


def test_three_in_a_row_stop_the_robot_until_it_rearms():
    loop = InstantSession()
    for _ in range(200):
        loop.frame([math.nan, 0.0, 0.0])
    assert loop.commands() == [(Command.HOLD, "POLICY_OUTPUT_INVALID")] * 2 + [(Command.STOP, "FAULT")]
    assert loop.statuses()[3:] == ["FAULT"] * 197
    loop.session.reset()
    loop.frame([0.0, 0.0, 0.5])
    assert loop.commands()[-1] == (Command.ACT, "") and loop.session.epoch == 2


def test_a_valid_output_resets_the_count_of_invalid_ones():
    loop = InstantSession()
    for _ in range(20):
        for values in ([math.nan, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.5]):
            loop.frame(values)
    assert Command.STOP not in dict(loop.commands())


def test_a_lost_worker_or_a_silence_does_not_weaken_a_fault():
    loop = InstantSession()
    for _ in range(3):
        loop.frame([math.nan, 0.0, 0.0])
    loop.session.worker_lost()
    loop.session.tick(loop.seq * 100 * MS + 900 * MS)
    loop.session.worker_ready()
    assert not any(isinstance(event, ActionEvent) for event in loop.session.take(0))


async def test_a_fault_is_reported_and_the_same_stream_acts_after_a_reset(checkpoint):
    script = Script(values=lambda frame: [math.nan, 0.0, 0.0])
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open()
        for seq in (1, 2, 3):
            await robot.frame(seq)
            await robot.status(seq)
        stop = await robot.until(lambda m: m.WhichOneof("kind") == "action" and m.action.command == pb.COMMAND_STOP)
        assert stop.action.reason == "FAULT"
        await robot.frame(4)
        status = await robot.status(4)
        assert (status.disposition, status.code) == (pb.DISPOSITION_REJECTED, "FAILED_PRECONDITION")
        script.values = lambda frame: [0.0, 0.0, 0.5]
        await robot.send(pb.ClientMessage(reset=pb.Reset()))
        await robot.notice("epoch")
        await robot.frame(5)
        assert (await robot.action(5)).epoch == 2
        assert served.metric("edgeflow_safe_action_total", reason="FAULT") == 1


async def silent_robot(served, **changes) -> WireRobot:
    robot = served.robot()
    await robot.open(control_period_ms=20, **changes)
    await robot.frame(1)
    await robot.action(1)
    return robot


def rings(script: Script) -> list[str]:
    return [type(m).__name__ for m in script.worker.seen if isinstance(m, OpenSession | CloseSession)]


async def test_a_silent_robot_gives_its_ring_back_and_its_next_frame_is_served(checkpoint):
    times = {"timing__silent_hold_ms": 30, "timing__silent_free_ms": 120}
    async with serving(checkpoint, **times) as served:
        robot = await silent_robot(served)
        await robot.hold("INGRESS_SILENT")
        await eventually(lambda: rings(served.script) == ["OpenSession", "CloseSession"])
        assert served.metric("edgeflow_sessions") == 1
        await robot.frame(2)
        assert (await robot.action(2)).epoch == 1
        assert rings(served.script)[:3] == ["OpenSession", "CloseSession", "OpenSession"]
        assert "worker_ready" not in [m.notice.kind for m in robot.seen if m.WhichOneof("kind") == "notice"]


async def test_a_new_episode_in_a_silence_is_the_epoch_that_the_ring_comes_back_with(checkpoint):
    times = {"timing__silent_hold_ms": 30, "timing__silent_free_ms": 120}
    async with serving(checkpoint, **times) as served:
        robot = await silent_robot(served)
        await eventually(lambda: "CloseSession" in rings(served.script))
        await robot.send(pb.ClientMessage(reset=pb.Reset()))
        await robot.frame(2)
        assert (await robot.action(2)).epoch == 2
        opened = [m for m in served.script.worker.seen if isinstance(m, OpenSession)]
        assert {m.epoch for m in opened} == {1, 2} and opened[-1].epoch == 2


@pytest.mark.parametrize("freed", [True, False])
async def test_a_worker_lost_in_a_silence_changes_nothing_for_the_next_frame(checkpoint, freed: bool):
    times = {"timing__silent_hold_ms": 30, "timing__silent_free_ms": 120 if freed else 5000}
    async with serving(checkpoint, **times) as served:
        robot = await silent_robot(served)
        await robot.hold("INGRESS_SILENT")
        if freed:
            await eventually(lambda: "CloseSession" in rings(served.script))
        served.script.worker.kill()
        await robot.notice("worker_ready")
        await robot.frame(2)
        await robot.action(2)


FAST = {"mode": pb.MODE_SERIAL, "control_period_ms": 20}
PARKED_SOON = {"timing__silent_hold_ms": 30, "timing__silent_free_ms": 120}


async def parked_robot(served, closed: int = 1, **changes) -> WireRobot:
    robot = await silent_robot(served, **changes)
    await robot.hold("INGRESS_SILENT")
    await eventually(lambda: rings(served.script).count("CloseSession") >= closed)
    return robot


async def rejected(robot: WireRobot, seq: int, reason: str) -> None:
    await robot.frame(seq)
    status = await robot.status(seq)
    assert (status.disposition, status.code, status.reason) == (pb.DISPOSITION_DROPPED, "RESOURCE_EXHAUSTED", reason)
    await robot.hold(reason)


async def test_the_capacity_of_a_silent_robot_goes_to_another(checkpoint):
    async with serving(checkpoint, max_sessions=1, **PARKED_SOON) as served:
        robot, other = await parked_robot(served), served.robot()
        await other.open(control_period_ms=5000)
        await other.frame(1)
        await rejected(robot, 2, "SESSIONS_TAKEN")
        await rejected(robot, 3, "SESSIONS_TAKEN")
        await other.send(pb.ClientMessage(close=pb.Close()))
        await other.rest()
        await robot.frame(4)
        assert (await robot.action(4)).epoch == 1
        assert served.metric("edgeflow_sessions") == 1


async def test_a_robot_that_comes_back_to_a_full_device_holds_until_it_fits(checkpoint):
    script = Script(pass_ns=(30_000_000,) * 5)  # one robot takes all of the device
    async with serving(checkpoint, script, **PARKED_SOON) as served:
        robot = served.robot()
        await robot.open(**FAST)
        await eventually(lambda: "CloseSession" in rings(script))
        other = served.robot()
        script.hold = True
        await other.open(**FAST)
        await other.frame(1)
        await eventually(lambda: bool(script.worker.held))
        script.hold = False
        await rejected(robot, 1, "DEVICE_FULL")
        await other.send(pb.ClientMessage(close=pb.Close()))
        await other.rest()
        await robot.frame(2)
        await robot.action(2)


async def test_a_robot_that_leaves_during_readmission_frees_its_capacity(checkpoint):
    async with serving(checkpoint, max_sessions=1, **PARKED_SOON) as served:
        for closed in (1, 3):
            robot = await parked_robot(served, closed)
            await robot.frame(2)
            robot.call.cancel()
            await eventually(lambda: served.metric("edgeflow_sessions") == 0)
        await served.robot().open()


async def test_sessions_without_capacity_are_bounded(checkpoint):
    async with serving(checkpoint, max_sessions=1, **PARKED_SOON) as served:
        first, second = [await parked_robot(served, closed) for closed in (1, 2)]
        third = await parked_robot(served, 4)  # and the first one's end
        assert (await first.rest())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await eventually(lambda: served.metric("edgeflow_sessions") == 2)
        for robot in (second, third):
            await robot.frame(2)
            await robot.action(2)
            await robot.send(pb.ClientMessage(close=pb.Close()))
            await robot.rest()


def test_rejected_messages_and_broken_images_use_no_capacity():
    session = Session(1, REQUEST, SCHEMA, replace(RULES, rejected_frames=1000), 0)
    for seq in range(1, 30):
        now_ns = seq * 50 * MS
        session.tick(now_ns)
        session.reject_message(InvalidArgument("junk"), now_ns)
        session.admit(seq, now_ns, now_ns)
        session.offer(CheckedFrame(seq=seq, stamp_ns=now_ns, images=(b"",)), now_ns)
        if session.start_decoding(now_ns, alone=True) is not None:
            session.decode_failed(InvalidArgument("broken"), now_ns)
    assert session.parked and session.ended is None
    assert [e.reason for e in session.take(now_ns) if isinstance(e, ActionEvent)] == ["INGRESS_SILENT"]


async def test_a_ring_is_kept_while_frames_are_in_flight(checkpoint):
    times = {"timing__silent_hold_ms": 20, "timing__silent_free_ms": 40}
    async with serving(checkpoint, Script(hold=True), **times) as served:
        robot = served.robot()
        await robot.open(control_period_ms=20)
        await robot.frame(1)
        await robot.hold("INGRESS_SILENT")
        control = served.robot()
        opened = await control.open(control_period_ms=20)
        await eventually(lambda: "CloseSession" in rings(served.script))
        closed = [m.session for m in served.script.worker.seen if isinstance(m, CloseSession)]
        assert closed == [opened.session], "the one of which nothing is under way, though it came later"
        served.script.worker.release()
        await robot.action(1)
