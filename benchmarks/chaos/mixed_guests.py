"""Misbehaving guests of a service: robots that cheat, and clients that chat without a pause.

Each function is the work of a process: it reports when it has started, and at the end what it did.
"""

from __future__ import annotations

import http
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection

import grpc

from benchmarks.chaos.robots import SMALL, Channel, http_status, opening, picture, run_until_stopped
from edgeflow_client.rpc import control_pb2 as pb

NICE = 10  # real guests use the processors of other machines
DECLARED_HZ, SENT_HZ = 5.0, 50.0
RESET_EVERY = 3  # frames
REST_S = 0.2
PATIENCE_S = 90.0
QUESTIONS = (
    {"messages": [{"role": "user", "content": "What do you see?"}], "max_tokens": 32},
    {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 64, "stream": True},
    {"messages": [{"role": "user", "content": "no " * 200}], "max_tokens": 8, "n": 2},
)
Tally = Counter[str]


def cheats(link: Connection, address: str, count: int) -> None:
    """Robots that send ten times what they declared, start an episode every few frames, and reconnect when they are
    disconnected. Reports streams by their ends, and messages.
    """
    image = pb.Image(data=picture(SMALL))
    _at_it(link, [lambda leaving, tally: _cheat(address, image, leaving, tally)] * count)


def talkers(link: Connection, port: int, count: int) -> None:
    """Chat clients that ask again as soon as they are answered. Reports statuses."""
    _at_it(link, [lambda leaving, tally: _talk(port, leaving, tally)] * count)


def _at_it(link: Connection, works: list[Callable[[threading.Event, Tally], None]]) -> None:
    os.nice(NICE)
    leaving, tallies = threading.Event(), [Tally() for _ in works]
    running = [partial(work, leaving, tally) for work, tally in zip(works, tallies, strict=True)]
    run_until_stopped(link, running, leaving.set, PATIENCE_S)
    link.send(sum(tallies, Tally()))


def _cheat(address: str, image: pb.Image, leaving: threading.Event, tally: Tally) -> None:
    while not leaving.is_set():
        channel = Channel(address)
        ended = threading.Event()
        try:
            for message in channel.stream(cheating(image, leaving, ended, tally)):
                tally[str(message.WhichOneof("kind"))] += 1
            tally["OK"] += 1
        except grpc.RpcError as error:
            tally[error.code().name] += 1
        finally:
            ended.set()
            channel.channel.close()
        leaving.wait(REST_S)


def cheating(
    image: pb.Image, leaving: threading.Event, ended: threading.Event, tally: Tally
) -> Iterator[pb.ClientMessage]:
    """The messages of a robot that cheats, until it leaves or its stream has ended."""
    yield opening(SMALL, DECLARED_HZ)
    seq = 0
    while not leaving.is_set() and not ended.wait(1 / SENT_HZ):
        seq += 1
        tally["frames"] += 1
        yield pb.ClientMessage(frame=pb.Frame(seq=seq, stamp_ns=time.monotonic_ns(), images=[image]))
        if seq % RESET_EVERY == 0:
            yield pb.ClientMessage(reset=pb.Reset())


def _talk(port: int, leaving: threading.Event, tally: Tally) -> None:
    asked = 0
    while not leaving.is_set():
        question = QUESTIONS[asked % len(QUESTIONS)]
        asked += 1
        status = http_status(port, "POST", "/v1/chat/completions", json.dumps(question).encode(), PATIENCE_S)
        tally[str(status) if status else "no answer"] += 1
        if status != http.HTTPStatus.OK:
            leaving.wait(REST_S)
