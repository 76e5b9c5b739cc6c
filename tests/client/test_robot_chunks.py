"""Chunks through a real gRPC server and a clock of the test."""

import numpy as np

from edgeflow_client.blending import Weighted
from edgeflow_client.clock import ManualClock
from edgeflow_client.pose import identity
from edgeflow_client.types import Command
from tests.client.conftest import IMAGE
from tests.client.scripted import NAMES, Talk

MS = 1_000_000
HORIZON, STEP_MS = 5, 20.0
ROWS = np.repeat(0.01 * np.arange(HORIZON)[:, None], len(NAMES), axis=1)


def answer_with_chunks(talk: Talk) -> None:
    talk.open(valid_for_ms=500, horizon=HORIZON, step_ms=STEP_MS)
    for frame in talk.frames():
        talk.act(frame, np.ravel(ROWS), horizon=HORIZON, step_ms=STEP_MS)


def test_a_reader_of_directives_is_woken_for_every_row(serve, connect):
    clock = ManualClock(1000 * MS)
    found = []
    with connect(serve(answer_with_chunks), clock=clock) as client:
        client.push(IMAGE, pose=identity())
        for directive in client.directives():
            if directive.command is Command.ACT:
                found.append((directive.action.step, directive.action.values[0]))
                clock.advance_ns(round(STEP_MS * MS) if len(found) < HORIZON else 1000 * MS)
            elif found:
                break
        assert directive.reason == "SILENCE"
        assert client.statistics().steps == HORIZON
    assert found == [(step, ROWS[step, 0]) for step in range(HORIZON)]


def test_the_service_gets_the_row_in_execution(serve, connect, eventually):
    clock, server = ManualClock(1000 * MS), serve(answer_with_chunks)
    with connect(server, clock=clock, blending=Weighted()) as client:
        client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        clock.advance_ns(round(2.5 * STEP_MS * MS))
        client.push(IMAGE, pose=identity())
        opening = server.heard.get(timeout=60).open
        first, second = (server.heard.get(timeout=60).frame for _ in range(2))
        assert client.opened.schema.horizon == HORIZON
    assert opening.chunks
    assert not first.HasField("playing")
    assert (second.playing.seq, second.playing.step) == (1, 2)
