"""A replayed stream says what the recorded robot said: stamps, reports and episodes, under numbers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from edgeflow.lab.recordings.replay import ReplayPlan, SessionReplay
from edgeflow.lab.recordings.sessions import choose_sessions
from edgeflow_client.connection.wire import opened_of
from edgeflow_client.errors import EdgeflowError, FailedPrecondition
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import CameraSpec, Execution, ImageFormat, Mode
from tests.client.scripted import VALUES, Refuse, Server, Talk, answer_all, opened
from tests.lab.recordings.made_up import MS, MadeUp

SCHEMA = opened_of(opened()).schema
CAMERA = CameraSpec("wrist", 2, 2, ImageFormat.RGB8, resize=True)
STAMP = 7_000_000 * MS


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(answer_all)
    yield running
    running.stop()


def recorded(*frames: dict[str, Any], **contract: Any) -> MadeUp:
    """A session with these frames, each answered with VALUES."""
    fields = {"control_period_ns": 40 * MS, "chunks": True, "schema": SCHEMA, "instruction": "go"} | contract
    made = MadeUp(session=4).opened(cameras=(CAMERA,), state=(), **fields)
    for index, each in enumerate(frames):
        fields = {"text": "go", "image": bytes([index] * 12), "state": (), "stamp_ns": STAMP + index * MS} | each
        made.frame(100 + index, 2 * index, **fields)
        made.answer(100 + index, 2 * index, epoch=each.get("epoch", 1), values=tuple(VALUES), horizon=1)
    return made


def replayed(made: MadeUp, server: Server, speed: float | None = None) -> tuple[Any, list[pb.ClientMessage]]:
    """The replay of a recording's only session, and the messages that the server got."""
    plan = ReplayPlan(address=server.address, speed=speed, tolerance=0.0)
    (found,) = asyncio.run(SessionReplay(made, choose_sessions(made, ()), plan, lambda *_: None).run())
    return found, [server.heard.get_nowait() for _ in range(server.heard.qsize())]


def test_frames_are_sent_as_they_were(server: Server):
    frames = (
        {"resting": True},
        {"playing": Playing(100, 3, STAMP + 5), "arrived": Arrived(100, 9 * MS)},
        {"playing": Playing(77, 1), "arrived": Arrived(1 << 62, 1)},  # answered before the recording began
        {"epoch": 2, "text": "stop", "stamp_ns": 5},
        {"epoch": 2, "text": "stop", "stamp_ns": 1 << 64},  # no message can carry it
    )
    contract = {"mode": Mode.DEPTH, "depth": 3, "execution": Execution.REST, "max_action_age_ns": 300 * MS}
    found, heard = replayed(recorded(*frames, **contract), server)
    opening, first, second, third, reset, fourth, close = heard
    assert (opening.open.mode, opening.open.depth, opening.open.max_action_age_ms) == (pb.MODE_DEPTH, 3, 300)
    assert (opening.open.execution, opening.open.control_period_ms) == (pb.EXECUTION_REST, 40)
    assert not opening.open.cameras[0].resize and opening.open.cameras[0].format == pb.IMAGE_FORMAT_RGB8
    sent = [each.frame for each in (first, second, third, fourth)]
    assert [(each.seq, each.stamp_ns) for each in sent] == [
        *((index + 1, STAMP + index * MS) for index in range(3)),
        (4, 5),
    ]
    assert first.frame.resting and not first.frame.HasField("arrived")
    assert second.frame.playing == pb.Playing(seq=1, step=3, start_ns=STAMP + 5)
    assert second.frame.arrived == pb.Arrived(seq=1, age_ns=9 * MS)
    assert not third.frame.HasField("playing") and third.frame.arrived.seq == 2  # an answer that the robot never got
    assert reset.reset.instruction == "stop" and close.HasField("close")
    assert [each.images[0].data[0] for each in sent] == [0, 1, 2, 3]
    assert (found.stream.unsendable, found.differences.bit_equal) == (1, 4)


def test_a_slow_replay_stretches_stamps_and_the_declared_period(server: Server):
    _, heard = replayed(recorded({}, {}, {}), server, speed=0.5)
    assert heard[0].open.control_period_ms == 80
    assert [each.frame.stamp_ns - STAMP for each in heard[1:-1]] == [0, 2 * MS, 4 * MS]


def test_stamps_never_run_ahead_of_what_a_service_accepts(server: Server):
    found, _ = replayed(recorded({}, {"stamp_ns": STAMP + 1_100 * MS}), server)
    assert found.replayed == 2
    assert found.stream.waited_ns > 0  # 900 ms at once


def test_hostile_times_do_not_make_a_replay_wait(server: Server):
    found, _ = replayed(recorded({}, {"stamp_ns": 1 << 62}), server)
    assert found.replayed == 2
    with pytest.raises(FailedPrecondition, match="days apart"):
        replayed(recorded({}, {"time_ns": 1 << 62}), server, speed=1.0)


def test_a_session_that_a_service_rejects_is_named(server: Server):
    def rejects(talk: Talk) -> None:
        talk.hear()
        raise Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")

    server.script = rejects
    with pytest.raises(FailedPrecondition, match="to: session 4 cannot be opened: no room"):
        replayed(recorded({}), server)


def test_an_answer_is_shown_where_it_parts_first(server: Server):
    def script(talk: Talk) -> None:
        talk.open()
        for frame in talk.frames():
            talk.act(frame, [0.01, 0.0, 0.25 if frame.seq >= 2 else 0.0, 0.0, 0.0, 0.0, 1.0])

    server.script = script
    found, _ = replayed(recorded({}, {}, {}), server)
    first = found.differences.first
    assert (first.seq, first.dimension, first.difference, found.parted) == (101, "z", 0.25, 2)
    assert first.text == "frame 101 at 0.00 s, row 0, z: 0 and 0.25, 0.25 apart"
    assert [each["largest"] for each in found.differences.dimensions] == [0, 0, 0.25, 0, 0, 0, 0]


def test_another_action_or_the_end_of_the_stream_is_said(server: Server):
    other = replace(SCHEMA, names=("a", *SCHEMA.names[1:]))
    with pytest.raises(FailedPrecondition, match=r"session 4 has the action 'a'.*they cannot be compared"):
        replayed(recorded({}, schema=other), server)
    units = replace(SCHEMA, units=("m", *SCHEMA.units[1:]))
    with pytest.raises(FailedPrecondition, match=r"the action's 'x' is in 'm' in session 4, in '1' in"):
        replayed(recorded({}, schema=units), server)

    def leaves(talk: Talk) -> None:
        talk.open()
        talk.act(next(talk.frames()))

    server.script = leaves
    found, _ = replayed(recorded({}, {}, {}), server)
    assert isinstance(found.error, EdgeflowError) and found.differences.compared == 1
