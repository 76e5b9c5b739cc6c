"""A worker that dies, hangs, rejects or cannot start; drain; health as robots see it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edgeflow.contract import CameraNeed, Pace, PolicyInputs
from edgeflow.ipc.messages import CloseSession, OpenSession, SessionRejected, WorkerFailed
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow.service.host import watchdogs
from edgeflow.service.observe.health import HealthState
from edgeflow.service.worker import supervisor
from edgeflow_client.errors import CheckpointError, ConfigError, StartError
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.front_process import wait_for
from tests.service.harness import WAIT_S, eventually, serving
from tests.service.scripted import ANY_CAMERA, Script

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_killed_worker_is_replaced_and_the_same_stream_acts_again(checkpoint):
    async with serving(checkpoint, Script(hold=True)) as served:
        robot = served.robot()
        session = (await robot.open(mode=pb.MODE_PIPELINED)).session
        await robot.frame(1, instruction="grasp the blue handle")
        await eventually(lambda: bool(served.script.worker.held))
        served.script.worker.kill()
        status = await robot.status(1)
        assert (status.disposition, status.reason) == (pb.DISPOSITION_DROPPED, "WORKER_LOST")
        await robot.hold("WORKER_LOST")
        served.script.hold = False
        await robot.notice("worker_ready")
        reopened = [m for m in served.script.worker.seen if isinstance(m, OpenSession)]
        assert reopened == [
            OpenSession(
                session=session,
                epoch=2,
                pace=Pace(3),
                unnorm_key="",
                instruction="",
                deadline_ns=60_000_000_000,
                period_ns=50_000_000,
            )
        ]
        await robot.frame(2)
        action = await robot.action(2)
        assert (action.command, action.epoch) == (pb.COMMAND_ACT, 2)
        assert served.script.worker.submitted()[0].instruction == "grasp the blue handle"
        assert served.metric("edgeflow_worker_restarts_total", cause="eof") == 1
        assert len(served.script.workers) == 2


async def test_warnings_of_the_worker_are_in_the_log_and_in_the_status(checkpoint):
    async with serving(checkpoint, Script(warnings=["no token ends an answer"])) as served:
        assert served.service.status.warnings == ("no token ends an answer",)
        assert [event["text"] for event in served.events("warning")] == ["no token ends an answer"]


async def test_a_configuration_that_is_not_of_the_policy_ends_the_start(checkpoint):
    for names in ({"left": "front"}, {"image": "front", "observation.image": "front"}):
        with pytest.raises(ConfigError, match=r"^cameras: .*'(left|image)'"):
            async with serving(checkpoint, cameras=names):
                pass
    async with serving(checkpoint, cameras={"observation.image": "wrist"}) as served:
        await served.robot().open()


async def test_a_later_worker_that_the_configuration_does_not_suit_is_not_used(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.01)
    async with serving(checkpoint, cameras={"image": "wrist"}) as served:
        served.script.inputs = PolicyInputs(cameras=(CameraNeed(name="top"),))
        served.script.worker.kill()
        await eventually(lambda: len(served.events("worker_failed")) > 0)
        assert "its names are 'top'" in served.events("worker_failed")[0]["text"]
        served.script.inputs = ANY_CAMERA
        await eventually(lambda: len(served.events("worker_ready")) == 2)
        await served.robot().open()


async def test_frames_while_the_worker_restarts_are_dropped_by_name(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.01)
    script = Script()
    async with serving(checkpoint, script, timing__crash_limit=1000) as served:
        robot = served.robot()
        await robot.open()
        script.fail = WorkerFailed("StartError", "no device")
        script.worker.kill()
        await robot.notice("worker_lost")
        await robot.frame(1)
        status = await robot.status(1)
        assert (status.code, status.reason) == ("UNAVAILABLE", "WORKER_RESTARTING")
        rejected = served.robot()
        with pytest.raises(AssertionError, match="UNAVAILABLE"):
            await rejected.open()
        script.fail = None
        await robot.notice("worker_ready")
        await robot.frame(2)
        await robot.action(2)


async def test_a_hung_worker_is_replaced(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "PING_S", 0.02)
    script = Script()
    async with serving(checkpoint, script, timing__worker_progress_ms=150) as served:
        robot = served.robot()
        await robot.open()
        script.worker.deaf = True
        await robot.notice("worker_lost")
        await robot.notice("worker_ready")
        assert served.metric("edgeflow_worker_restarts_total", cause="hung") >= 1
        assert served.metric("edgeflow_watchdog_fired_total", which="worker") >= 1


async def test_a_worker_that_speaks_nonsense_is_replaced(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        served.script.worker._channel._sock.sendall(b"\xff" * 64)
        await robot.notice("worker_ready")
        assert served.metric("edgeflow_worker_restarts_total", cause="protocol") == 1


async def test_robots_get_stop_when_no_worker_can_be_started(checkpoint, monkeypatch):
    monkeypatch.setattr(supervisor, "BACKOFF_S", 0.001)
    script = Script()
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open()
        script.fail = WorkerFailed("StartError", "no device")
        script.worker.kill()
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.UNAVAILABLE
        commands = [m.action.command for m in robot.seen if m.WhichOneof("kind") == "action"]
        assert commands[-1] == pb.COMMAND_STOP
        assert served.service.health.state is HealthState.FAULT and not served.service.health.live


async def test_a_rejected_session_gets_the_reason(checkpoint):
    script = Script(
        reject=SessionRejected(0, "INVALID_ARGUMENT", "unnorm_key: the model has a, b", "unnorm_key", "KEY")
    )
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        with pytest.raises(AssertionError, match="INVALID_ARGUMENT unnorm_key: the model has a, b"):
            await robot.open()
        trailers = dict(await robot.call.trailing_metadata())
        assert (trailers["edgeflow-field"], trailers["edgeflow-reason"]) == ("unnorm_key", "KEY")
        await eventually(lambda: any(isinstance(m, CloseSession) for m in script.worker.seen))


async def test_a_worker_lost_while_a_session_opens(checkpoint):
    script = Script()
    async with serving(checkpoint, script) as served:
        script.worker.deaf = True
        robot = served.robot()
        opening = asyncio.create_task(robot.open())
        await eventually(lambda: any(isinstance(m, OpenSession) for m in script.worker.seen))
        script.worker.kill()
        with pytest.raises(AssertionError, match="UNAVAILABLE"):
            await opening


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(WorkerFailed("CheckpointError", "layer 3 is missing"), CheckpointError), (WorkerFailed("Odd", "?"), StartError)],
)
async def test_a_first_worker_that_fails_is_a_start_error(checkpoint, failure, kind):
    with pytest.raises(kind, match=failure.text.replace("?", r"\?")):
        async with serving(checkpoint, Script(fail=failure)):
            raise AssertionError("it must not serve")


async def test_a_drain_lets_the_step_finish_then_holds_and_ends(checkpoint):
    script = Script(hold=True)
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await eventually(lambda: bool(script.worker.held))
        stopping = asyncio.create_task(served.service.stop())
        assert (await robot.notice("drain")).deadline_ms == 3000
        rejected = served.robot()
        with pytest.raises(AssertionError, match="UNAVAILABLE"):
            await rejected.open()
        await robot.frame(2)
        status = await robot.status(2)
        assert (status.disposition, status.reason) == (pb.DISPOSITION_DROPPED, "DRAINING")
        script.worker.release()
        assert (await robot.action(1)).command == pb.COMMAND_ACT
        await robot.hold("DRAINING")
        code, text = await robot.rest()
        assert code is grpc.StatusCode.UNAVAILABLE and "stopping" in text
        await stopping
        assert served.service.health.state is HealthState.STOPPED


async def test_a_drain_does_not_wait_for_ever(checkpoint):
    async with serving(checkpoint, Script(hold=True), timing__drain_ms=50) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await eventually(lambda: bool(served.script.worker.held))
        await served.service.stop()
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert robot.dispositions() == [(1, pb.DISPOSITION_DROPPED)]


async def test_robots_that_watch_health_hear_of_a_restart(checkpoint):
    async with serving(checkpoint) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        for name in ("", SERVICE):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await asyncio.wait_for(watch.read(), WAIT_S)).status == SERVING
        served.script.worker.kill()
        assert (await asyncio.wait_for(watch.read(), WAIT_S)).status == NOT_SERVING
        assert (await asyncio.wait_for(watch.read(), WAIT_S)).status == SERVING
        watch.cancel()


async def test_those_who_watch_health_hear_of_a_blocked_loop(checkpoint, monkeypatch):
    monkeypatch.setattr(watchdogs, "STALL_S", 0.3)
    async with serving(checkpoint) as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        heard = [(await asyncio.wait_for(watch.read(), WAIT_S)).status]
        wait_for(lambda: served.service.health.stalled)
        heard += [(await asyncio.wait_for(watch.read(), WAIT_S)).status for _ in range(2)]
        assert heard == [SERVING, NOT_SERVING, SERVING]
        watch.cancel()
