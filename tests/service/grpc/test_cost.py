"""The cost of a raw frame's pixels to control's loop: processor time of its thread, in copies of those pixels."""

from __future__ import annotations

import asyncio
import queue
import time

import grpc

from edgeflow.rpc import control_pb2 as pb
from edgeflow.service.grpc.server import SERVICE
from tests.service.harness import HEIGHT, JPEG, WIDTH, frame_message, open_message, serving

RAW = bytes(range(256)) * (640 * 480 * 3 // 256)
FRAMES = 25
MOST_COPIES = 8  # gRPC makes three, and the socket to the worker one


class ThreadRobot:
    """A robot whose calls block, for a thread other than the loop's."""

    def __init__(self, channel: grpc.Channel, camera: pb.Camera, data: bytes) -> None:
        self._data = data
        self._seq = 0
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = channel.stream_stream(f"/{SERVICE}/Stream", bytes, pb.ServerMessage.FromString)
        self._answers = stream(iter(self._requests.get, None))
        opening = open_message(cameras=[camera], control_period_ms=20)
        self._requests.put(pb.ClientMessage(open=opening).SerializeToString())

    def act(self) -> None:
        """Send a frame and wait for its action."""
        self._seq += 1
        frame = frame_message(self._seq, self._data, stamp_ns=time.monotonic_ns())
        self._requests.put(pb.ClientMessage(frame=frame).SerializeToString())
        while (message := next(self._answers)).action.seq != self._seq:
            assert message.frame_status.disposition != pb.DISPOSITION_REJECTED, message

    def end(self) -> None:
        self._requests.put(None)
        list(self._answers)


def copy_ns() -> int:
    """One copy of the pixels to memory in use."""
    target = bytearray(RAW)
    took = []
    for _ in range(FRAMES):
        started = time.thread_time_ns()
        target[:] = RAW
        took.append(time.thread_time_ns() - started)
    return min(took)


async def test_a_raw_frame_costs_control_s_loop_few_copies_of_its_pixels(checkpoint):
    small = pb.Camera(name="a", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)
    raw = pb.Camera(name="a", width=640, height=480, format=pb.IMAGE_FORMAT_RGB8)
    loop = asyncio.get_running_loop()
    least = []
    async with serving(checkpoint) as served:
        with grpc.insecure_channel(served.service.status.grpc_address) as channel:
            for camera, data in ((small, JPEG), (raw, RAW)):
                robot = await loop.run_in_executor(None, ThreadRobot, channel, camera, data)
                took = []
                for _ in range(FRAMES):
                    started = time.thread_time_ns()
                    await loop.run_in_executor(None, robot.act)
                    took.append(time.thread_time_ns() - started)
                await loop.run_in_executor(None, robot.end)
                least.append(min(took))
    jpeg_ns, raw_ns = least
    assert raw_ns - jpeg_ns < MOST_COPIES * copy_ns()
