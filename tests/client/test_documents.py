"""The code blocks of the documents for robots: the same as the examples, or run against a scripted server."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgeflow_client.pose import identity
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec
from tests.client.scripted import NAMES, Talk

ROOT = Path(__file__).parents[2]
HORIZON, STEP_MS = 5, 20.0
ROWS = np.repeat(0.01 * np.arange(HORIZON)[:, None], len(NAMES), axis=1)


class Enough(Exception):
    """Raised by a test to leave a loop of a document."""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "page, example", [("robots/loop-joints.md", "joints.py"), ("robots/loop-tool.md", "tool_pose.py")]
)
def test_a_loop_is_that_of_the_example(page: str, example: str):
    shown = blocks(page)[0]
    assert shown.startswith("def control(")
    assert shown in (ROOT / "examples" / example).read_text()


def answer_in_joints(talk: Talk) -> None:
    talk.open(valid_for_ms=500, horizon=HORIZON, step_ms=STEP_MS, relative=False)
    for frame in talk.frames():
        talk.act(frame, np.ravel(ROWS), horizon=HORIZON, step_ms=STEP_MS)


def answer_in_displacements(talk: Talk) -> None:
    talk.open(valid_for_ms=500)
    for frame in talk.frames():
        talk.act(frame)


@pytest.fixture
def robot(serve):
    """robot(script) holds the names that the documents use; `moves` is a list of what the arm was commanded."""

    def make(script) -> dict:
        moves: list = []
        deadline = time.monotonic() + 60
        cameras = [CameraSpec(name, 8, 6, ImageFormat.RGB8) for name in ("top", "wrist")]
        picture = np.zeros((6, 8, 3), np.uint8)
        return {
            "address": serve(script).address,
            "moves": moves,
            "cameras": cameras,
            "camera": cameras[0],
            "CAMERA": cameras[0],
            "state": StateSpec(name="observation.state", size=6),
            "task": "pick up the cube",
            "working": lambda: not moves and time.monotonic() < deadline,
            "image": lambda *_: picture,
            "picture": lambda _: np.zeros((480, 640, 3), np.uint8),
            "jpeg": lambda _: b"any bytes",
            "joint_angles": lambda: np.zeros(6),
            "pose": identity,
            "move": lambda joints: moves.append(joints),
            "hold": lambda: None,
        }

    return make


def test_the_loop_with_blended_chunks_runs(robot):
    names = robot(answer_in_joints)
    exec(blocks("robots/chunks.md")[0], names)
    assert [move.shape for move in names["moves"]] == [(len(NAMES),)]


@pytest.mark.parametrize("page, block", [("robots/cameras-and-state.md", 0), ("robots/latency.md", 0)])
def test_a_session_opens_as_shown(robot, page: str, block: int):
    exec(blocks(page)[block], robot(answer_in_joints))


def test_the_settings_for_ages_are_accepted(robot):
    exec(blocks("robots/latency.md")[2], robot(answer_in_displacements))


def test_the_schema_is_printed_as_shown(robot, capsys):
    names = robot(answer_in_joints)
    names["client"] = SimpleNamespace(opened=SimpleNamespace(schema=SimpleNamespace(names=["a0"], units=["1"])))
    names["client"].opened.schema.low, names["client"].opened.schema.high = [0.0], [1.0]
    exec(blocks("robots/loop-joints.md")[1], names)
    assert capsys.readouterr().out == "a0 1 0.0 1.0\n"


def test_the_watching_program_shows_the_first_action(robot):
    names, seen = robot(answer_in_displacements), []

    def show(*values, **_) -> None:
        seen.append(values)
        if values[0] == "act":
            raise Enough

    (shown,) = blocks("start/first-robot.md")
    with pytest.raises(Enough):
        exec(re.sub(r'ADDRESS = ".*"', f"ADDRESS = {names['address']!r}", shown), {"print": show})
    assert seen == [("hold", "WAITING", False), ("act", "", False)]
