"""A load robot reports the chunk that it plays, and what arrived, as a robot with the SDK does."""

from __future__ import annotations

import pytest

from edgeflow_client.loadtest.robots.playing import ChunkPlayer, Seamed
from edgeflow_client.rpc import control_pb2 as pb

MS = 1_000_000


def chunk(seq: int, stamp_ms: int, *, continues: int = 0, conditioned: int = 0) -> pb.Action:
    return pb.Action(
        command=pb.COMMAND_ACT,
        seq=seq,
        stamp_ns=stamp_ms * MS,
        horizon=8,
        step_ms=50,
        valid_for_ms=250,
        continues=continues,
        conditioned_steps=conditioned,
    )


def said(playing: ChunkPlayer, stamp_ms: int) -> pb.Frame:
    frame = pb.Frame(stamp_ns=stamp_ms * MS)
    playing.report(frame)
    return frame


def test_nothing_is_reported_before_the_first_answer():
    assert said(ChunkPlayer(), 100) == pb.Frame(stamp_ns=100 * MS, resting=True)


def test_the_row_that_is_due_at_the_capture_and_the_age_of_the_newest_answer():
    playing = ChunkPlayer()
    assert playing.heard(chunk(3, 1000), 1080 * MS) == Seamed()
    frame = said(playing, 1120)
    assert (frame.playing.seq, frame.playing.step) == (3, 2)
    assert (frame.arrived.seq, frame.arrived.age_ns) == (3, 80 * MS)


def test_a_chunk_is_executed_until_its_validity_ends_or_a_hold():
    playing = ChunkPlayer()
    playing.heard(chunk(1, 1000), 1080 * MS)
    assert said(playing, 1329).playing.seq == 1
    assert not said(playing, 1330).HasField("playing")
    playing.heard(chunk(2, 1300), 1380 * MS)
    playing.heard(pb.Action(command=pb.COMMAND_HOLD), 1400 * MS)
    assert not said(playing, 1410).HasField("playing")
    assert said(playing, 1410).arrived.seq == 2


def test_a_late_chunk_is_executed_only_if_nothing_else_is_valid():
    playing = ChunkPlayer()
    playing.heard(chunk(1, 1000), 1080 * MS)
    assert playing.heard(chunk(2, 1050, continues=1, conditioned=2), 1150 * MS) == Seamed(continued=True)
    late = chunk(3, 1100, continues=2, conditioned=2)
    assert playing.heard(late, 1201 * MS) == Seamed(continued=True, late=True)
    assert said(playing, 1210).playing.seq == 2
    apart = chunk(4, 1200, continues=1, conditioned=8)
    assert playing.heard(apart, 1210 * MS) == Seamed(continued=True, late=True)
    assert said(playing, 1220).playing.seq == 2
    fresh = chunk(5, 1200)
    assert playing.heard(fresh, 1390 * MS) == Seamed()
    later = chunk(6, 1300, continues=5, conditioned=2)
    assert playing.heard(later, 1610 * MS) == Seamed(continued=True, late=True)
    assert said(playing, 1620).playing.seq == 6


@pytest.mark.parametrize("held", [True, False])
def test_nothing_continues_what_a_hold_or_the_end_of_validity_ended(held: bool):
    playing = ChunkPlayer()
    playing.heard(chunk(1, 1000), 1080 * MS)
    if held:
        playing.heard(pb.Action(command=pb.COMMAND_HOLD), 1100 * MS)
    assert playing.heard(chunk(2, 1300, continues=1, conditioned=8), 1330 * MS) == Seamed(continued=True, late=True)
    assert not said(playing, 1340).HasField("playing")
    assert playing.heard(chunk(3, 1320), 1350 * MS) == Seamed()
    assert playing.heard(chunk(4, 1330, continues=3, conditioned=2), 1360 * MS) == Seamed(continued=True)
    assert playing.heard(chunk(5, 1340, continues=1, conditioned=8), 1370 * MS).late
    assert said(playing, 1380).playing.seq == 4


def test_single_actions_are_not_reported_as_chunks_and_move_the_robot_for_their_step():
    playing = ChunkPlayer(100 * MS)
    single = pb.Action(command=pb.COMMAND_ACT, seq=1, stamp_ns=1000 * MS, horizon=1, valid_for_ms=250)
    assert playing.heard(single, 1040 * MS) == Seamed()
    arrived = pb.Arrived(seq=1, age_ns=40 * MS)
    assert said(playing, 1139) == pb.Frame(stamp_ns=1139 * MS, arrived=arrived)
    assert said(playing, 1140) == pb.Frame(stamp_ns=1140 * MS, arrived=arrived, resting=True)


def test_rows_from_the_arrival_at_the_rate_that_is_said_and_then_a_rest():
    playing = ChunkPlayer()
    answer = chunk(1, 1000)
    answer.MergeFrom(pb.Action(from_arrival=True, rate=0.5, rows=2))
    answer.valid_for_ms = 1000
    playing.heard(answer, 1700 * MS)
    frame = said(playing, 1820)
    assert (frame.playing, frame.resting) == (pb.Playing(seq=1, step=1, start_ns=1700 * MS), False)
    assert said(playing, 1900).resting
    moving = chunk(2, 1880)
    moving.from_arrival = True
    assert playing.heard(moving, 1890 * MS).executed is None  # it does not stand still yet
    assert said(playing, 1890).playing.seq == 1
