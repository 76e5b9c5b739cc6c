"""Robots that are killed, frozen, slow to read, or come in a storm: nothing of them stays, nobody else notices."""

from __future__ import annotations

import asyncio
import signal
import threading

import grpc

from edgeflow.ipc.messages import CloseSession, OpenSession
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import RunningService, WireRobot, eventually, frame_message, open_message, serving
from tests.service.processes import descriptors
from tests.service.robot_process import robot_processes
from tests.service.scripted import Script


def held() -> tuple[int, int, int]:
    """Descriptors, threads and tasks of this process; the event loop's own pool grows to its size in its time."""
    threads = [each for each in threading.enumerate() if not each.name.startswith("asyncio_")]
    return descriptors(), len(threads), len(asyncio.all_tasks())


async def settled(wanted: tuple[int, int, int]) -> None:
    await eventually(lambda: all(now <= then for now, then in zip(held(), wanted, strict=True)))


def rings(served: RunningService) -> tuple[int, int]:
    """How many the worker was asked for and got back."""
    seen = served.script.worker.seen
    asked = {m.session for m in seen if isinstance(m, OpenSession)}
    return len(asked), len(asked & {m.session for m in seen if isinstance(m, CloseSession)})


async def act(robot: WireRobot, first: int, count: int) -> None:
    for seq in range(first, first + count):
        await robot.frame(seq)
        await robot.action(seq)


async def live_and_leave(served: RunningService, number: int) -> None:
    """A session that ends in one of the ways in which sessions end."""
    if number % 6 == 5:
        await served.act(pb.ActRequest(open=open_message(), frame=frame_message(1)))
        return
    robot = served.robot()
    await robot.open()
    if number % 6 > 0:
        await robot.frame(1)
    match number % 6:
        case 1:
            await robot.action(1)
            await robot.send(pb.ClientMessage(close=pb.Close()))
            await robot.rest()
        case 2:
            await robot.action(1)
            await robot.call.done_writing()
            await robot.rest()
        case 3:
            await robot.send(b"\xff\xff")
            robot.call.cancel()
        case _:
            robot.call.cancel()


async def test_a_hundred_sessions_leave_no_state(checkpoint):
    async with serving(checkpoint, limits__streams=64) as served:
        for number in range(12):
            await live_and_leave(served, number)
        await eventually(lambda: served.metric("edgeflow_sessions") == 0)
        before = held()
        for first in range(0, 96, 6):
            await asyncio.gather(*(live_and_leave(served, first + step) for step in range(6)))
        await eventually(lambda: served.metric("edgeflow_sessions") == 0)
        await settled(before)
        await eventually(lambda: rings(served) == (108, 108))  # the worker hears of an end a moment later
        closed = [s.value for s in served.service.metrics.sessions_closed.collect()[0].samples if "_total" in s.name]
        assert sum(closed) == served.metric("edgeflow_sessions_opened_total") == 108


async def test_robots_killed_in_the_middle_of_a_frame(checkpoint):
    async with serving(checkpoint, limits__sessions_per_principal=8) as served:
        bystander = served.robot()
        await bystander.open()
        await act(bystander, 1, 1)
        before = held()
        with robot_processes(served.service.status.grpc_address, 2) as robots:
            for each in robots:
                await asyncio.to_thread(each.acted)
            assert served.metric("edgeflow_sessions") == 3
            for each in robots:
                each.process.send_signal(signal.SIGKILL)
            await act(bystander, 2, 5)
            await eventually(lambda: served.metric("edgeflow_sessions") == 1)
            assert served.metric("edgeflow_sessions_closed_total", reason="silent") == 0, "noticed by their end"
        await settled(before)
        await eventually(lambda: rings(served)[1] >= 2)
        await act(bystander, 7, 1)


async def test_a_frozen_robot_loses_its_ring_and_acts_again_when_it_thaws(checkpoint):
    times = {"timing__silent_hold_ms": 100, "timing__silent_free_ms": 300}
    async with serving(checkpoint, **times) as served:
        with robot_processes(served.service.status.grpc_address, 1) as (robot,):
            await asyncio.to_thread(robot.acted)
            robot.process.send_signal(signal.SIGSTOP)
            await eventually(lambda: rings(served) == (1, 1))
            assert served.metric("edgeflow_sessions") == 1
            robot.process.send_signal(signal.SIGCONT)
            acted = 0
            while acted < 6:  # a HOLD is number 0
                acted += await asyncio.to_thread(robot.acted) > 0
            assert served.metric("edgeflow_frames_total", disposition="acted", reason="") > 5


async def test_a_slow_reader_disturbs_nobody(checkpoint):
    async with serving(checkpoint, timing__slow_reader_ms=200, limits__rejected_frames=100_000) as served:
        small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
        async with grpc.aio.insecure_channel(served.service.status.grpc_address, options=small_window) as channel:
            other, slow = served.robot(), served.robot(channel)
            await other.open()
            await slow.open()
            seq = 1
            while not served.metric("edgeflow_sessions_closed_total", reason="slow_reader"):
                for _ in range(200):
                    await slow.send(b"\xff\xff")
                await act(other, seq, 1)
                seq += 1
            assert served.metric("edgeflow_sessions") == 1
            await act(other, seq, 10)
            assert (await slow.rest())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def rejected(served: RunningService) -> grpc.StatusCode:
    robot = served.robot()
    await robot.send(pb.ClientMessage(open=open_message()))
    code, _ = await robot.rest()
    return code


async def test_a_storm_of_opens_does_not_disturb_admitted_robots(checkpoint):
    kept = {"timing__silent_free_ms": 30_000}  # also when the admitted have acted and the storm still blows
    async with serving(checkpoint, Script(), max_sessions=2, limits__streams=1024, **kept) as served:
        admitted = [served.robot(), served.robot()]
        for robot in admitted:
            await robot.open()
            await act(robot, 1, 1)
        assert await rejected(served) is grpc.StatusCode.RESOURCE_EXHAUSTED
        before = held()
        acting = asyncio.gather(*(act(robot, 2, 40) for robot in admitted))
        storm = [asyncio.create_task(rejected(served)) for _ in range(300)]
        assert set(await asyncio.gather(*storm)) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        await acting
        assert served.metric("edgeflow_sessions") == 2
        await settled(before)
        assert rings(served)[0] == 2
