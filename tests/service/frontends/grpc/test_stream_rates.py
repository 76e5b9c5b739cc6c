"""Robots that send more than they declared, or what is rejected: their streams end, and the others keep their rate."""

from __future__ import annotations

import asyncio
import itertools

import grpc

from edgeflow.scheduler.turns import BURST
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import WAIT_S, frame_message, open_message, rush, serving
from tests.service.scripted import Script


async def test_too_many_rejected_frames_end_the_stream(checkpoint):
    async with serving(checkpoint, limits__rejected_frames=20) as served:
        robot = served.robot()
        await robot.open()
        for _ in range(21):
            await robot.send(b"\xff\xff")
        code, text = await robot.rest()
        assert code is grpc.StatusCode.ABORTED and "20" in text


async def test_frames_above_the_rate_are_rejected_unless_they_are_the_newest(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        await rush(served, robot, 40, control_period_ms=1000)
        rejected = [m.frame_status for m in robot.seen if m.frame_status.code == "RESOURCE_EXHAUSTED"]
        assert {status.reason for status in rejected} <= {"RATE_EXCEEDED"}
        assert sorted(seq for seq, _ in robot.dispositions()) == list(range(1, 41))


async def test_a_flood_of_frames_ends_its_stream_and_no_other(checkpoint):
    async with serving(checkpoint, limits__rate_hz=10) as served:
        honest = served.robot()
        await honest.open(control_period_ms=1000)
        await honest.frame(1)
        await honest.action(1)
        code, text, reason, seen = await asyncio.to_thread(flood, served.service.status.grpc_address)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "more than 100 frames in 10 s" in text
        assert reason == "rate_exceeded"
        outcomes = [each.frame_status for each in seen if each.WhichOneof("kind") == "frame_status"]
        seqs = [seq for each in outcomes for seq in range(each.seq, max(each.seq, each.last_seq) + 1)]
        assert sorted(seqs) == list(range(1, len(seqs) + 1)) and len(seqs) > 100
        (hold,) = [each.action for each in seen if each.action.command == pb.COMMAND_HOLD]
        assert hold.reason == "RATE_EXCEEDED"
        await honest.frame(2)
        await honest.action(2)
        assert served.metric("edgeflow_sessions_closed_total", reason="rate_exceeded") == 1


def flood(address: str) -> tuple[grpc.StatusCode, str, str, list[pb.ServerMessage]]:
    """Send frames without a pause until the stream ends: its end, and all that was read."""
    opening = pb.ClientMessage(open=open_message(control_period_ms=1000))
    frames = (pb.ClientMessage(frame=frame_message(seq)) for seq in itertools.count(1))
    with grpc.insecure_channel(address) as channel:
        stream = channel.stream_stream(
            f"/{SERVICE}/Stream", pb.ClientMessage.SerializeToString, pb.ServerMessage.FromString
        )
        call = stream(itertools.chain([opening], frames), timeout=WAIT_S)
        seen = []
        try:
            for message in call:
                seen.append(message)
        except grpc.RpcError as error:
            return error.code(), error.details(), dict(error.trailing_metadata())["edgeflow-reason"], seen
        raise AssertionError("the stream ended without a status")


async def test_a_robot_gets_what_it_declared_while_another_is_active(checkpoint):
    async with serving(checkpoint) as served:
        honest, cheat = served.robot(), served.robot()
        await honest.open(control_period_ms=5000)
        number = (await cheat.open(control_period_ms=10_000)).session
        for seq in range(1, BURST + 1):
            await cheat.frame(seq)
            await cheat.action(seq)
        for seq in range(BURST + 1, 41):
            await cheat.frame(seq)
        await cheat.until(lambda m: m.frame_status.seq <= 39 <= max(m.frame_status.seq, m.frame_status.last_seq))
        await honest.frame(1)
        await honest.action(1)
        frames = [frame for frame in served.script.worker.submitted() if frame.session == number]
        assert [frame.seq for frame in frames[:BURST]] == list(range(1, BURST + 1))
        assert all(frame.turn_wait_ns > 0 for frame in frames), (
            "the worker gives it gaps and turns, within its age limit"
        )
        await honest.send(pb.ClientMessage(close=pb.Close()))
        assert (await cheat.action(40)).command == pb.COMMAND_ACT, "alone, it need not wait"


async def test_second_opens_count_like_rejected_frames(checkpoint):
    async with serving(checkpoint, limits__rejected_frames=20) as served:
        robot = served.robot()
        await robot.open()
        for _ in range(21):
            await robot.send(pb.ClientMessage(open=open_message()))
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.ABORTED
