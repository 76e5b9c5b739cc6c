"""Control.Stream over a real socket, with a scripted worker."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import grpc
import pytest

from edgeflow.service.frontends.grpc.codec import UNPARSABLE
from edgeflow.service.frontends.grpc.stream import receive
from edgeflow.service.sessions import runner
from edgeflow.service.sessions.in_flight import MOST_NOTES
from edgeflow.service.worker import supervisor
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import wire
from tests.service.harness import JPEG, eventually, frame_message, open_message, rush, serving
from tests.service.scripted import Script

MS = 1_000_000
PASSES = tuple(value * MS for value in (10, 18, 12, 4, 5))  # K = 3: serial 18 ms


async def test_a_frame_is_answered_by_its_action(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        opened = await robot.open(mode=pb.MODE_SERIAL)
        assert (opened.epoch, opened.action_tokens, opened.mode, opened.model) == (1, 3, pb.MODE_SERIAL, "demo")
        assert [d.name for d in opened.schema.dimensions] == ["x", "y", "grip"]
        assert opened.valid_for_ms == 250
        await robot.frame(1, stamp_ns=77)
        action = await robot.action(1)
        assert (action.epoch, action.stamp_ns, action.command) == (1, 77, pb.COMMAND_ACT)
        assert list(action.values) == [0.25, -0.5, 1.0] and list(action.token_ids) == [7, 8, 9]
        assert action.timings.passes == 3 and action.timings.decode_ns > 0
        assert (await robot.status(1)).disposition == pb.DISPOSITION_ACTED


@pytest.mark.parametrize(("hz", "ahead_ns"), [(20, 900 * MS), (10, 3_600_000 * MS)])
async def test_one_wrong_stamp_costs_a_robot_less_than_a_second(checkpoint, hz: int, ahead_ns: int):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open(control_period_ms=1000 // hz, max_action_age_ms=400)
        begun_s = time.monotonic()
        for seq in range(1, 3 + hz):
            await asyncio.sleep(begun_s + seq / hz - time.monotonic())  # frames come as they are taken
            await robot.frame(seq, stamp_ns=time.monotonic_ns() + (ahead_ns if seq == 2 else 0))
            if (await robot.status(seq)).disposition == pb.DISPOSITION_ACTED and seq > 3:
                return
        pytest.fail("no action within a second")


async def test_the_newest_frame_wins_and_every_frame_is_accounted_for(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        assert await rush(served, robot, 30, control_period_ms=16) is grpc.StatusCode.OK
        found = robot.dispositions()
        assert sorted(seq for seq, _ in found) == list(range(1, 31))
        assert (30, pb.DISPOSITION_ACTED) in found


async def test_half_closing_lets_frames_in_flight_finish(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await robot.call.done_writing()
        await eventually(lambda: bool(served.script.worker.held))
        served.script.worker.release()
        assert (await robot.action(1)).command == pb.COMMAND_ACT
        assert (await robot.rest())[0] is grpc.StatusCode.OK


async def test_a_new_instruction_starts_an_epoch_and_drops_frames_in_flight(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await eventually(lambda: bool(served.script.worker.held))
        await robot.frame(2, instruction="grasp the blue handle")
        status = await robot.status(1)
        assert (status.disposition, status.reason) == (pb.DISPOSITION_DROPPED, "EPOCH_CHANGED")
        assert (await robot.notice("epoch")).epoch == 2
        await eventually(lambda: len(served.script.worker.submitted()) == 2)
        second = served.script.worker.submitted()[1]
        assert (second.epoch, second.instruction) == (2, "grasp the blue handle")
        served.script.worker.release(2)
        assert (await robot.action(2)).epoch == 2
        assert all(m.action.seq != 1 for m in robot.seen if m.WhichOneof("kind") == "action")


async def test_reset_starts_an_epoch(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.send(pb.ClientMessage(reset=pb.Reset()))
        assert (await robot.notice("epoch")).epoch == 2
        await robot.frame(1)
        assert (await robot.action(1)).epoch == 2
        assert served.script.worker.submitted()[0].instruction == "grasp the red handle"


@pytest.mark.parametrize(
    ("values", "valid"),
    [([0.0, 0.0, float("nan")], True), ([0.0, float("inf"), 0.0], True), ([0.0, 1.5, 0.0], True), ([0.0] * 3, False)],
)
async def test_an_invalid_policy_output_becomes_hold(checkpoint, values, valid):
    script = Script(values=lambda frame: values, valid=valid)
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        status = await robot.status(1)
        assert (status.code, status.reason) == ("INTERNAL", "POLICY_OUTPUT_INVALID")
        await robot.hold("POLICY_OUTPUT_INVALID")
        script.values, script.valid = (lambda frame: [0.0] * 3), True
        await robot.frame(2)
        assert (await robot.action(2)).command == pb.COMMAND_ACT


async def test_an_action_older_than_permitted_becomes_hold(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SERIAL, max_action_age_ms=1)
        await robot.frame(1)
        await eventually(lambda: bool(served.script.worker.held))
        received_ns = time.monotonic_ns()
        await eventually(lambda: time.monotonic_ns() - received_ns > 2_000_000)
        served.script.worker.release()
        status = await robot.status(1)
        assert (status.code, status.reason) == ("DEADLINE_EXCEEDED", "ACTION_TOO_OLD")
        await robot.hold("ACTION_TOO_OLD")


@pytest.mark.parametrize(("seq", "reset"), [(1, False), (2, False), (2, True)])
async def test_without_its_own_limit_no_action_is_older_than_validity_plus_forecast(checkpoint, seq: int, reset: bool):
    """The first action, any other, and the first after a reset."""
    script = Script(pass_ns=PASSES)
    async with serving(checkpoint, script, max_action_age_ms=0, timing__action_ttl_ms=100) as served:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SERIAL)
        if seq == 2:
            await robot.frame(1)
            await robot.status(1)
        if reset:
            await robot.send(pb.ClientMessage(reset=pb.Reset()))
            await robot.notice("epoch")
        script.hold = True
        await robot.frame(seq)
        await eventually(lambda: bool(script.worker.held))
        received_ns = time.monotonic_ns()
        await eventually(lambda: time.monotonic_ns() - received_ns > 150 * MS)
        script.worker.release()
        assert (await robot.status(seq)).reason == "ACTION_TOO_OLD"
        await robot.hold("ACTION_TOO_OLD")


async def test_each_action_carries_its_limit_which_follows_the_forecast(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "PING_S", 0.02)
    script = Script(pass_ns=PASSES)
    async with serving(checkpoint, script, max_action_age_ms=0, timing__action_ttl_ms=500) as served:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SERIAL)

        async def limit_ms(seq: int) -> int:
            await robot.frame(seq)
            return (await robot.action(seq)).max_age_ms

        alone_ms = await limit_ms(1)
        assert 500 + 18 + 3 <= alone_ms <= 500 + 18 + 3 + 2, "three passes, the front and decoding"
        other = served.robot()
        await other.open(mode=pb.MODE_SERIAL)
        beside_ms = await limit_ms(2)
        assert beside_ms > alone_ms
        other.call.cancel()
        session = next(iter(served.service.plane._runners.values())).session
        await eventually(lambda: session.age_limit.ns < (alone_ms + beside_ms) // 2 * MS)
        assert abs(await limit_ms(3) - alone_ms) <= 2
        script.ran = (40 * MS, 1, 2)
        await eventually(lambda: session.age_limit.ns > 530 * MS)


async def test_a_session_s_own_limit_or_the_service_s_replaces_the_default(checkpoint):
    async with serving(checkpoint, max_action_age_ms=700) as served:
        for asked, told in ((0, 700), (4000, 4000)):
            robot = served.robot()
            await robot.open(max_action_age_ms=asked)
            await robot.frame(1)
            assert (await robot.action(1)).max_age_ms == told


async def test_silence_becomes_hold_and_a_frame_resumes(checkpoint):
    async with serving(checkpoint, timing__silent_hold_ms=30) as served:
        robot = served.robot()
        await robot.open(control_period_ms=16)
        await robot.frame(1)
        await robot.action(1)
        await robot.hold("INGRESS_SILENT")
        await robot.frame(2)
        assert (await robot.action(2)).command == pb.COMMAND_ACT


async def test_long_silence_ends_the_stream(checkpoint):
    async with serving(checkpoint, timing__silent_hold_ms=20, timing__silent_end_ms=150) as served:
        robot = served.robot()
        await robot.open(control_period_ms=16)
        code, text = await robot.rest()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED and "no frame" in text
        assert served.metric("edgeflow_sessions") == 0


async def test_a_stream_without_open_ends(checkpoint):
    async with serving(checkpoint, timing__silent_end_ms=100) as served:
        code, _ = await served.robot().rest()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_two_robots_are_kept_apart(checkpoint):
    script = Script(values=lambda frame: [frame.session / 10, 0.0, 0.0])
    async with serving(checkpoint, script) as served:
        robots = [served.robot(), served.robot()]
        sessions = [(await robot.open()).session for robot in robots]
        for robot, session in zip(robots, sessions, strict=True):
            await robot.frame(1)
            assert (await robot.action(1)).values[0] == session / 10


async def test_a_robot_that_leaves_frees_its_capacity(checkpoint):
    async with serving(checkpoint, max_sessions=1) as served:
        first = served.robot()
        await first.open()
        second = served.robot()
        await second.send(pb.ClientMessage(open=pb.Open()))
        code, _ = await second.rest()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        third = served.robot()
        with pytest.raises(AssertionError, match="RESOURCE_EXHAUSTED"):
            await third.open()
        assert dict(await third.call.trailing_metadata())["retry-after-ms"] == "1000"
        first.call.cancel()
        await eventually(lambda: served.metric("edgeflow_sessions") == 0)
        assert (await served.robot().open()).session == 2


async def test_capacity_follows_the_worker_s_memory(checkpoint):
    async with serving(checkpoint, Script(max_sessions=1)) as served:
        await served.robot().open()
        second = served.robot()
        with pytest.raises(AssertionError, match="all 1 sessions are in use"):
            await second.open()


async def test_a_slow_reader_loses_its_session_and_gets_the_error_when_it_reads(checkpoint):
    async with serving(checkpoint, timing__slow_reader_ms=100, limits__rejected_frames=100_000) as served:
        small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
        async with grpc.aio.insecure_channel(served.service.status.grpc_address, options=small_window) as channel:
            robot = served.robot(channel)
            await robot.open()
            while not served.metric("edgeflow_sessions_closed_total", reason="slow_reader"):
                await robot.send(b"\xff\xff")
            assert served.metric("edgeflow_sessions") == 0
            code, text = await robot.rest()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "not read" in text


async def test_answers_that_nobody_reads_are_bounded(checkpoint):
    """A reader that is merely slow: each write moves, but the answers pile up."""
    async with serving(checkpoint, limits__rejected_frames=100_000) as served:
        robot = served.robot()
        await robot.open()
        (runner,) = served.service.plane._runners.values()
        for _ in range(10_000):
            receive(UNPARSABLE, runner, served.service.plane.config.limits)
        assert runner.session.ended is not None and len(runner.session.take(0)) <= MOST_NOTES + 2
        code, text = await robot.rest()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "too slowly" in text
        assert served.metric("edgeflow_sessions_closed_total", reason="slow_reader") == 1


async def test_robots_that_leave_while_their_streams_open_are_cancelled_calls_and_no_incidents(checkpoint):
    async with serving(checkpoint) as served:
        for _ in range(100):
            robot = served.robot()
            with suppress(grpc.aio.AioRpcError):  # its own library's, on a busy machine
                await robot.send(pb.ClientMessage(open=open_message()))
            robot.call.cancel()
        await eventually(lambda: served.metric("edgeflow_rpc_total", method="Stream", code="CANCELLED") > 10)
        await eventually(lambda: not served.metric("edgeflow_sessions"))
        assert not served.metric("edgeflow_rpc_total", method="Stream", code="INTERNAL")


async def test_an_unexpected_failure_becomes_an_incident(checkpoint, monkeypatch):
    async with serving(checkpoint, incidents=1) as served:
        secret = "the task text"
        monkeypatch.setattr(served.service.plane, "_admit", lambda *_: (_ for _ in ()).throw(RuntimeError(secret)))
        robot = served.robot()
        with pytest.raises(AssertionError, match="INTERNAL"):
            await robot.open()
        incident = served.events("incident")[0]
        assert incident["incident"] in await robot.call.details()
        assert incident["error"] == "RuntimeError" and secret not in str(incident)


@pytest.mark.parametrize("broken", ["decoder", "pool"])
async def test_a_decoder_that_fails_drops_one_frame_and_decodes_the_next(checkpoint, monkeypatch, broken: str):
    async with serving(checkpoint, incidents=1) as served:
        robot = served.robot()
        await robot.open()
        with monkeypatch.context() as patched:
            if broken == "decoder":
                patched.setattr(runner, "decode_frame", lambda *_: (_ for _ in ()).throw(MemoryError()))
            else:
                patched.setattr(served.service._pool, "submit", lambda *_: (_ for _ in ()).throw(RuntimeError()))
            await robot.frame(1)
            status = await robot.status(1)
        incident = served.events("incident")[0]["incident"]
        assert (status.disposition, status.code) == (pb.DISPOSITION_DROPPED, "UNAVAILABLE") and incident in status.text
        await robot.frame(2)
        await robot.action(2)


async def test_the_decoders_threads_exist_from_the_start(checkpoint):
    async with serving(checkpoint, decode_threads=3) as served:
        assert len(served.service._pool._threads) == 3


async def test_close_ends_the_stream_well(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await eventually(lambda: bool(served.script.worker.held))
        await robot.send(pb.ClientMessage(close=pb.Close()))
        assert (await robot.rest())[0] is grpc.StatusCode.OK
        assert robot.dispositions() == [(1, pb.DISPOSITION_DROPPED)]


async def test_raw_pixels_cross_unchanged(checkpoint):
    pixels = bytes(range(48))
    camera = pb.Camera(name="a", width=4, height=4, format=pb.IMAGE_FORMAT_RGB8)
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open(cameras=[camera])
        await robot.frame(1, pixels, images=[pb.Image(camera="a", data=pixels)])
        await robot.action(1)
        frame = served.script.worker.submitted()[0]
        assert (frame.payload, frame.sizes) == (pixels, [4, 4])


async def test_metrics_tell_what_happened(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await robot.status(1)
        await robot.frame(2, JPEG[:40])
        await robot.status(2)

        def told() -> list[float]:
            """They count what was written, which its reader may see a moment before."""
            acted = served.metric("edgeflow_frames_total", disposition="acted", reason="")
            rejected = served.metric("edgeflow_frames_total", disposition="rejected", reason="IMAGE_TRUNCATED")
            others = (served.metric(f"edgeflow_{name}") for name in ("sessions", "frame_e2e_seconds_count"))
            return [acted, rejected, *others]

        await eventually(lambda: told() == [1, 1, 1, 1])


async def test_what_a_newer_sdk_sends_is_ignored_where_its_number_permits_and_reported_once(checkpoint):
    hint, must = wire.number(100, 1), wire.number(99, 1)
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.send(wire.sized(1, open_message().SerializeToString() + hint))
        opened = (await robot.until(lambda m: m.HasField("opened"))).opened
        assert opened.ignored == ["message.open.100"]
        for seq in (1, 2):
            await robot.send(wire.sized(2, frame_message(seq).SerializeToString() + hint))
            await robot.action(seq)
        await robot.send(wire.number(100, 1))  # of an unknown kind
        await robot.send(wire.sized(2, frame_message(3).SerializeToString() + must))
        assert (await robot.status(3)).reason == "UNKNOWN_FIELD"
        assert [m.notice.text.split()[-1] for m in robot.seen if m.HasField("notice")] == ["message.frame.100"]
        logged = [event["fields"] for event in served.events("fields_ignored")]
        assert logged == [["message.open.100"], ["message.frame.100"]]
        rejected = served.robot()
        await rejected.send(wire.sized(1, open_message().SerializeToString() + must))
        code, text = await rejected.rest()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "message.open: has field 99" in text
