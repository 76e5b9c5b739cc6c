"""A worker process without torch that does what an instruction says: `hang`, `hang in c`, `stop`, `crash`, `fail`.

At its start `capture` fails as the capture of a pass does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import threading
from pathlib import Path

from edgeflow.contract import Chunk
from edgeflow.ipc.channel import BlockingChannel
from edgeflow.ipc.messages import (
    FrameResult,
    Message,
    OpenSession,
    Ping,
    Pong,
    SessionOpened,
    Shutdown,
    SubmitFrame,
    WarmupProgress,
    WorkerFailed,
)
from edgeflow.ipc.parent_death import bind_to_parent
from edgeflow.worker.inbox import Inbox
from edgeflow.worker.start import stand_by
from tests.service.scripted import SCHEMA, good_values, ready_message

FOREVER_S = 3600


def hang() -> None:
    threading.Event().wait(FOREVER_S)


def obey(instruction: str) -> None:
    match instruction:
        case "hang":
            hang()
        case "hang in c":
            while True:  # a signal ends one sleep
                ctypes.PyDLL(None).sleep(FOREVER_S)  # keeps the interpreter lock, as a stuck driver call may
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "crash":
            ctypes.string_at(0)


def answer(message: Message, channel: BlockingChannel) -> None:
    match message:
        case OpenSession():
            channel.send(SessionOpened(message.session, SCHEMA))
        case SubmitFrame(instruction="fail"):
            channel.send(WorkerFailed("CheckpointError", "policy.family: mine failed"))
            os._exit(2)
        case SubmitFrame():
            obey(message.instruction)
            values = good_values(message)
            channel.send(
                FrameResult(
                    session=message.session,
                    epoch=message.epoch,
                    seq=message.seq,
                    chunk=Chunk(tuple(values)),
                    token_ids=[1],
                    valid=True,
                    queue_ns=1,
                    inference_ns=1,
                    passes=1,
                    settled=1,
                )
            )
        case Ping():
            channel.send(
                Pong(
                    nonce=message.nonce,
                    passes=1,
                    rows=1,
                    full_passes=1,
                    pass_ns=[1000],
                    pass_prefills=[1],
                    pass_decodes=[0],
                    pass_whole=[False],
                )
            )


def run() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--fd", "--parent", "--stacks", "--handover"):
        parser.add_argument(name, type=int)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--pass-times", nargs="+")
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent, arguments.fd, arguments.stacks)
    if arguments.standby:
        stand_by(arguments.fd, lambda: obey(os.environ.get("EDGEFLOW_TEST_LOAD", "")))
    channel = BlockingChannel(socket.socket(fileno=arguments.fd))
    channel.send(WarmupProgress("loading", 0, 2))
    start = os.environ.get("EDGEFLOW_TEST_START", "")
    if start == "capture" and json.loads(arguments.config.read_text())["graphs"] != "off":
        channel.send(WorkerFailed("CaptureError", "graphs: not permitted"))
        os._exit(2)
    obey(start)
    channel.send(ready_message())
    inbox = Inbox()
    channel.read_forever(inbox.put, inbox.close)
    while not inbox.closed:
        inbox.wait(None)
        for message in inbox.drain()[0]:
            if isinstance(message, Shutdown):
                os._exit(0)
            answer(message, channel)
    os._exit(0)
