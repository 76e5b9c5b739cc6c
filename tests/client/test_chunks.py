"""Chunks in a session without sockets: played by the clock from their frame's stamp."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.blending import LATEST, Blending, TemporalEnsemble, Weighted
from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import opened_of
from edgeflow_client.errors import FailedPrecondition, Unavailable
from edgeflow_client.pose import identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import MAX_VALID_MS, ClientSession
from edgeflow_client.types import MAX_CHUNK_NUMBERS, MAX_HORIZON, Command
from tests.client.scripted import NAMES, opened, session_settings

MS = 1_000_000
HORIZON, STEP_MS = 8, 20
DIMS = len(NAMES)
ROWS = np.repeat(0.1 * np.arange(HORIZON)[:, None], DIMS, axis=1)


class ChunkSession:
    """A session whose service answers with chunks."""

    def __init__(
        self,
        max_action_age_s: float | None = None,
        blending: Blending = LATEST,
        horizon: int = HORIZON,
        step_ms: float = STEP_MS,
    ) -> None:
        self.clock = ManualClock(1000 * MS)
        self.horizon, self.step_ms = horizon, step_ms
        agreed = session_settings(max_action_age_s=max_action_age_s)
        self.session = ClientSession(agreed, "grasp", self.clock, 2000 * MS, blending=blending)
        self.open()

    def open(self) -> None:
        self.stream = OutgoingMessages(self.session.opening())
        self.session.stream_opened(opened(horizon=self.horizon, step_ms=self.step_ms), self.stream)

    def push(self, ago_ms: float = 0, instruction: str = "") -> pb.Frame:
        """A frame captured so long ago, as the network takes it."""
        captured_ns = self.clock.now_ns() - round(ago_ms * MS)
        self.session.push([b""], (), identity(), instruction, captured_ns)
        while not (message := next(self.stream)).HasField("frame"):
            pass
        return message.frame

    def act(self, frame: pb.Frame, rows=ROWS, valid_for_ms: int = 60_000, epoch: int = 1, **changed) -> bool:
        fields = {"horizon": self.horizon, "step_ms": self.step_ms, "stamp_ns": frame.stamp_ns} | changed
        message = pb.Action(
            epoch=epoch,
            seq=frame.seq,
            command=pb.COMMAND_ACT,
            valid_for_ms=valid_for_ms,
            values=np.ravel(rows),
            **fields,
        )
        return self.session.stream_message(pb.ServerMessage(action=message))

    def wait(self, ms: float) -> None:
        self.clock.advance_ns(round(ms * MS))

    @property
    def step(self) -> int | None:
        """The row being played; None = hold."""
        action = self.session.directive().action
        if action is None:
            return None
        np.testing.assert_array_equal(action.values, action.chunk[action.step])
        assert not np.shares_memory(action.values, action.chunk)
        return action.step


@pytest.fixture
def robot() -> ChunkSession:
    return ChunkSession()


def test_rows_follow_the_clock_from_the_stamp_of_the_frame(robot: ChunkSession):
    assert robot.act(robot.push())
    found = []
    for _ in range(HORIZON + 2):
        found.append(robot.step)
        robot.wait(STEP_MS)
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]


def test_a_chunk_that_comes_late_starts_in_the_middle(robot: ChunkSession):
    frame = robot.push()
    robot.wait(3.5 * STEP_MS)
    assert robot.act(frame)
    action = robot.session.directive().action
    assert (action.step, action.values[0], action.age_ns) == (3, ROWS[3, 0], 70 * MS)
    assert action.moment_ns == frame.stamp_ns + 60 * MS
    robot.wait(0.5 * STEP_MS)
    assert robot.step == 4


def test_the_directive_changes_with_the_row_and_not_otherwise(robot: ChunkSession):
    robot.act(robot.push())
    first = robot.session.directive()
    robot.wait(STEP_MS - 0.001)
    assert robot.session.directive() is first
    robot.wait(0.001)
    second = robot.session.directive()
    assert second is not first and robot.session.directive() is second
    assert (second.action.seq, second.action.received_ns) == (first.action.seq, first.action.received_ns)
    assert robot.session.statistics().steps == 2
    assert robot.session.statistics().actions == 1


@pytest.mark.parametrize("valid_for_ms", [90, MAX_VALID_MS, 60_000])
def test_a_chunk_ends_with_its_validity_counted_from_its_receipt(valid_for_ms):
    robot = ChunkSession(horizon=100, max_action_age_s=60.0)
    frame = robot.push()
    robot.wait(30)
    robot.act(frame, np.zeros((100, DIMS)), valid_for_ms)
    robot.wait(min(valid_for_ms, MAX_VALID_MS) - 0.001)
    assert robot.session.directive().command is Command.ACT
    robot.wait(0.001)
    assert robot.session.directive().reason == "SILENCE"


def test_the_last_row_stays_until_its_age_limit():
    robot = ChunkSession(max_action_age_s=0.1)
    robot.act(robot.push())
    robot.wait(7 * STEP_MS + 99.999)
    assert robot.step == HORIZON - 1
    robot.wait(0.001)
    assert robot.step is None


@pytest.mark.parametrize(("age_ms", "acts"), [(15 * STEP_MS, True), (7 * STEP_MS + 250, False)])
def test_on_arrival_the_row_that_is_due_is_checked(robot: ChunkSession, age_ms, acts):
    frame = robot.push()
    robot.wait(age_ms)
    assert robot.act(frame, max_age_ms=250) is acts
    assert robot.session.flight.too_old == (not acts)


def test_with_limits_shorter_than_a_step_no_row_is_executed_past_its_limit():
    robot = ChunkSession(max_action_age_s=0.015)
    frame = robot.push()
    robot.wait(17)
    assert not robot.act(frame)
    frame = robot.push()
    robot.wait(25)
    assert robot.act(frame)
    assert robot.step == 1
    robot.wait(10)
    assert robot.step is None


def test_a_newer_chunk_replaces_an_older_one_and_not_the_other_way_round(robot: ChunkSession):
    older = robot.push()
    robot.wait(5)
    newer = robot.push()
    assert robot.act(newer, 0 * ROWS)
    assert not robot.act(older)
    assert robot.session.directive().action.seq == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"horizon": 7}, "MALFORMED_ACTION"),
        ({"horizon": 0}, "MALFORMED_ACTION"),
        ({"horizon": 1, "rows": ROWS[0]}, "MALFORMED_ACTION"),
        ({"horizon": 1 << 31}, "MALFORMED_ACTION"),
        ({"rows": ROWS[:-1]}, "MALFORMED_ACTION"),
        ({"step_ms": 21.0}, "MALFORMED_ACTION"),
        ({"step_ms": float("nan")}, "MALFORMED_ACTION"),
        ({"stamp_ns": 5}, "MALFORMED_ACTION"),
        ({"rows": np.vstack([ROWS[:-1], np.full(DIMS, np.nan)])}, "MALFORMED_ACTION"),
        ({"rows": np.vstack([ROWS[:-1], np.full(DIMS, 1.001)])}, "ACTION_OUT_OF_LIMITS"),
    ],
)
def test_a_chunk_that_cannot_be_executed_means_hold(robot: ChunkSession, change, reason):
    robot.act(robot.push())
    assert not robot.act(robot.push(), **change)
    held = robot.session.directive()
    assert (held.command, held.reason) == (Command.HOLD, reason)


@pytest.mark.parametrize("blending", [Weighted(), TemporalEnsemble()])
def test_overlapping_chunks_are_blended_until_something_new_begins(blending):
    robot = ChunkSession(blending=blending)

    def plays_ones(epoch: int = 1, instruction: str = "") -> bool:
        """Whether a chunk of ones is played as it is, after one of zeros and a change."""
        robot.wait(STEP_MS)
        assert robot.act(robot.push(instruction=instruction), np.ones((HORIZON, DIMS)), epoch=epoch)
        ones = bool((robot.session.directive().action.chunk == 1.0).all())
        assert robot.act(robot.push(), 0 * ROWS, epoch=epoch)
        return ones

    assert plays_ones()
    assert not plays_ones()
    robot.session.reset("")
    assert plays_ones()
    assert plays_ones(instruction="place")
    robot.session.stream_message(pb.ServerMessage(notice=pb.Notice(kind="epoch", epoch=2)))
    assert plays_ones(epoch=2)
    for epoch in (1, 1):
        robot.session.stream_ended(Unavailable("gone"), final=False)
        robot.open()
        assert plays_ones(epoch)


def test_rejected_chunks_are_not_blended():
    robot = ChunkSession(blending=Weighted())
    old = robot.push()
    robot.act(robot.push(), np.ones((HORIZON, DIMS)))
    assert not robot.act(old, 0 * ROWS)
    robot.act(robot.push(), np.ones((HORIZON, DIMS)))
    assert (robot.session.directive().action.chunk == 1.0).all()


# What a frame says of the chunk that is played at its capture.


def playing(frame: pb.Frame) -> tuple[int, int] | None:
    return (frame.playing.seq, frame.playing.step) if frame.HasField("playing") else None


def test_a_frame_reports_the_row_in_execution_at_its_capture(robot: ChunkSession):
    first = robot.push()
    assert playing(first) is None
    robot.wait(30)
    robot.act(first)
    assert playing(robot.push()) == (1, 1)
    assert playing(robot.push(ago_ms=10)) is None, "nothing was played then"
    robot.wait(50)
    second = robot.push()
    assert playing(second) == (1, 4)
    robot.act(second)
    robot.wait(20)
    assert playing(robot.push()) == (second.seq, 1)
    assert playing(robot.push(ago_ms=30)) == (1, 3), "captured before the second chunk came"
    robot.wait(MAX_VALID_MS)
    assert playing(robot.push()) is None


def test_no_chunk_is_in_execution_after_hold_reset_or_a_lost_stream(robot: ChunkSession):
    robot.act(robot.push())
    robot.wait(25)
    robot.session.stream_message(pb.ServerMessage(action=pb.Action(command=pb.COMMAND_HOLD, reason="FAULT")))
    robot.wait(5)
    assert playing(robot.push()) is None
    assert playing(robot.push(ago_ms=10)) == (1, 1), "captured before it held"
    robot.session.reset("")
    assert playing(robot.push()) is None
    frame = robot.push()
    robot.act(frame, epoch=2)
    assert playing(robot.push()) == (frame.seq, 0)
    robot.session.reset("")
    assert playing(robot.push()) is None
    robot.act(robot.push(), epoch=3)
    robot.wait(5)
    robot.session.stream_ended(Unavailable("gone"), final=False)
    robot.open()
    assert playing(robot.push(ago_ms=1)) is None, "the chunk was of another stream"
    frame = robot.push()
    robot.act(frame)
    assert playing(robot.push()) == (frame.seq, 0), "numbers are those of the stream"


def test_single_actions_are_not_reported():
    robot = ChunkSession(horizon=1, step_ms=0.0)
    robot.act(robot.push(), ROWS[0])
    assert robot.step == 0
    assert playing(robot.push()) is None


# Opened.


@pytest.mark.parametrize(
    ("horizon", "step_ms", "told"),
    [
        (MAX_HORIZON + 1, 20.0, "a horizon of 1001"),
        (1 << 31, 20.0, "horizon"),
        (8, 0.0, "step"),
        (8, float("nan"), "step"),
        (8, -20.0, "step"),
        (8, 0.999, "steps of 0.999 ms; they must be 1 to 10000 ms"),
        (8, 10_001.0, "steps of 10001 ms"),
    ],
)
def test_a_schema_of_chunks_that_nobody_can_play_is_rejected(horizon, step_ms, told):
    with pytest.raises(FailedPrecondition, match=told):
        opened_of(opened(horizon=horizon, step_ms=step_ms))


def test_the_numbers_of_a_chunk_are_bounded():
    message = opened(horizon=MAX_HORIZON, step_ms=20.0)
    for number in range(33 - DIMS):
        message.schema.dimensions.add(name=f"more {number}")
    with pytest.raises(FailedPrecondition, match=f"with 33 dimensions it must be 1 to {MAX_CHUNK_NUMBERS // 33}"):
        opened_of(message)


@pytest.mark.parametrize(("horizon", "step_ms", "expected"), [(0, 0, (1, 0)), (1, 7, (1, 0)), (8, 12.5, (8, 12.5))])
def test_horizon_and_step_are_kept_and_an_older_service_has_horizon_1(horizon, step_ms, expected):
    schema = opened_of(opened(horizon=horizon, step_ms=step_ms)).schema
    assert (schema.horizon, schema.step_ms) == expected


# Properties.

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0.1, 150)),
        st.tuples(st.just("push"), st.floats(0, 100)),
        st.tuples(st.just("act"), st.integers(0, 5), st.integers(1, 700)),
        st.just(("reset",)),
    ),
    max_size=40,
)
BLENDINGS = st.sampled_from([LATEST, Weighted(), TemporalEnsemble()])
LIMITS_S = st.sampled_from([0.01, 0.05, 0.3, 60.0])


@settings(max_examples=150, deadline=None)
@given(EVENTS, BLENDINGS, LIMITS_S)
def test_rows_never_go_back_and_are_never_executed_out_of_time(events, blending, limit_s):
    robot = ChunkSession(max_action_age_s=limit_s, blending=blending)
    frames: list[pb.Frame] = []
    seen: list[tuple[int, int]] = []
    epoch, received_ns, valid_ms = 1, 0, 0
    for event in events:
        match event:
            case ("pass", ms):
                robot.wait(ms)
            case ("push", ago_ms):
                frames.append(robot.push(ago_ms))
            case ("act", back, valid_for_ms) if back < len(frames):
                if robot.act(frames[-1 - back], valid_for_ms=valid_for_ms, epoch=epoch):
                    received_ns, valid_ms = robot.clock.now_ns(), valid_for_ms
            case ("reset",):
                robot.session.reset("")
                frames, epoch = [], epoch + 1
        action, now_ns = robot.session.directive().action, robot.clock.now_ns()
        if action is None:
            continue
        seen.append((action.seq, action.step))
        row = min((now_ns - action.stamp_ns) // (STEP_MS * MS), HORIZON - 1)
        assert action.step == row
        assert now_ns - action.moment_ns < limit_s * 1e9
        assert now_ns < action.valid_until_ns <= received_ns + min(valid_ms, MAX_VALID_MS) * MS
        assert (action.values == action.chunk[row]).all()
    assert all(older <= newer for older, newer in pairwise(seen))


@settings(max_examples=100, deadline=None)
@given(EVENTS, BLENDINGS, LIMITS_S, st.integers(0, 1))
def test_with_a_horizon_of_1_blending_changes_nothing(events, blending, limit_s, horizon):
    plain, robot = ChunkSession(limit_s, horizon=0, step_ms=0.0), ChunkSession(limit_s, blending, horizon, step_ms=0.0)
    frames: list[tuple[pb.Frame, pb.Frame]] = []
    epoch = 1
    for number, event in enumerate(events):
        match event:
            case ("pass", ms):
                plain.wait(ms), robot.wait(ms)
            case ("push", ago_ms):
                frames.append((plain.push(ago_ms), robot.push(ago_ms)))
                assert frames[-1][0] == frames[-1][1]
            case ("act", back, valid_for_ms) if back < len(frames):
                values = np.full(DIMS, (number % 10) / 10)
                told = [
                    each.act(frame, values, valid_for_ms, epoch)
                    for each, frame in zip((plain, robot), frames[-1 - back], strict=True)
                ]
                assert told[0] == told[1]
            case ("reset",):
                plain.session.reset(""), robot.session.reset("")
                frames, epoch = [], epoch + 1
        expected, found = plain.session.directive(), robot.session.directive()
        assert (found.command, found.reason, found.needs_reset) == (
            expected.command, expected.reason, expected.needs_reset
        )  # fmt: skip
        if expected.action is not None:
            assert found.action.values.tobytes() == expected.action.values.tobytes()
            assert found.action.valid_until_ns == expected.action.valid_until_ns
            assert found.tool.pose.position.tobytes() == expected.tool.pose.position.tobytes()
            assert (found.action.step, found.action.chunk.shape) == (0, (1, DIMS))
