"""Chunks through a real gRPC server and a clock of the test, and the loops of docs/robot.md."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from edgeflow_client.blending import Weighted
from edgeflow_client.clock import ManualClock
from edgeflow_client.pose import identity
from edgeflow_client.types import Command
from tests.client.conftest import IMAGE
from tests.client.scripted import NAMES, Talk

MS = 1_000_000
HORIZON, STEP_MS = 5, 20.0
ROWS = np.repeat(0.01 * np.arange(HORIZON)[:, None], len(NAMES), axis=1)
DOCS = Path(__file__).parents[2] / "docs" / "robot.md"


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


def test_the_service_hears_which_row_is_played(serve, connect, eventually):
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


def answer_in_joints(talk: Talk) -> None:
    talk.open(valid_for_ms=500, horizon=HORIZON, step_ms=STEP_MS, relative=False)
    for frame in talk.frames():
        talk.act(frame, np.ravel(ROWS), horizon=HORIZON, step_ms=STEP_MS)


def test_the_loops_of_the_documentation_run(serve):
    first, blending, _ = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    moves: list[np.ndarray] = []
    deadline = time.monotonic() + 60
    names = {
        "address": serve(answer_in_joints).address,
        "working": lambda: not moves and time.monotonic() < deadline,
        "image": lambda name: np.zeros((480, 640, 3), np.uint8),
        "joint_angles": lambda: np.zeros(6),
        "move": moves.append,
        "hold": lambda: None,
    }
    for shown in (first, blending):
        moves.clear()
        exec(shown, names)
        assert [move.shape for move in moves] == [(len(NAMES),)]


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", DOCS.read_text()))
def test_the_links_of_the_documentation_lead_somewhere(target):
    path, _, heading = target.partition("#")
    headings = [
        line.lstrip("# ").lower().replace(" ", "-") for line in DOCS.read_text().splitlines() if line[:1] == "#"
    ]
    assert heading in headings if not path else (DOCS.parent / path).exists()
