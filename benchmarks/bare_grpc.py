"""The floor of `benchmarks.service_overhead`: a gRPC server that does nothing else, run as a separate process.

It answers each frame after a pause by an action and a status, on the service's event loop and with its settings of
memory. Of a frame it reads the number and the stamp; nothing is checked, decoded or handed to anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc

from benchmarks.serving import BenchmarkedService
from edgeflow.service.frontends.grpc.codec import lift_images
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow.service.host.process import keep_freed_memory, new_loop
from edgeflow_client.rpc import control_pb2 as pb
from tests.client.scripted import NAMES, opened

MESSAGE_BYTES = 8 << 20
PAUSE_S = 0.02  # roughly the time of the embedded policy


@contextlib.contextmanager
def bare_grpc() -> Iterator[BenchmarkedService]:
    """Run the server on a free port."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_grpc"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield BenchmarkedService(f"127.0.0.1:{int(process.stdout.readline())}", "", process.pid)
    finally:
        process.kill()
        process.communicate()


async def _stream(_: Any, context: Any) -> None:
    await context.read()
    await context.write(pb.ServerMessage(opened=opened()))
    while (data := await context.read()) is not grpc.aio.EOF:
        received_ns = time.monotonic_ns()
        lifted = lift_images(data)
        message = pb.ClientMessage.FromString(lifted.rest if lifted is not None else data)
        if message.WhichOneof("kind") != "frame":
            return
        await asyncio.sleep(PAUSE_S)
        await context.write(pb.ServerMessage(action=_action(message.frame, received_ns)))
        status = pb.FrameStatus(seq=message.frame.seq, disposition=pb.DISPOSITION_ACTED)
        await context.write(pb.ServerMessage(frame_status=status))


def _action(frame: pb.Frame, received_ns: int) -> pb.Action:
    paused_ns = time.monotonic_ns() - received_ns
    return pb.Action(
        epoch=1,
        seq=frame.seq,
        stamp_ns=frame.stamp_ns,
        command=pb.COMMAND_ACT,
        values=[0.0] * len(NAMES),
        timings=pb.Timings(inference_ns=paused_ns, passes=1, server_ns=paused_ns),
    )


async def _serve() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MESSAGE_BYTES)])
    handler = grpc.stream_stream_rpc_method_handler(_stream, None, pb.ServerMessage.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Stream": handler}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    keep_freed_memory()
    new_loop().run_until_complete(_serve())
