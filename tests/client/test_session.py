"""A session against scripted messages, without sockets."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from edgeflow_client.pose import Pose, identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.types import Command
from tests.client.scripted import VALUES, opened, session_settings

MS = 1_000_000


class StreamSession:
    """A session, and the service's side of its stream."""

    def __init__(self, max_action_age_s: float | None = None) -> None:
        self.clock = ManualClock(1000 * MS)
        agreed = session_settings(max_action_age_s=max_action_age_s)
        self.session = ClientSession(agreed, "grasp", self.clock, 2000 * MS)

    def open(self, **answer) -> None:
        self.stream = OutgoingMessages(self.session.opening())
        self.session.stream_opened(opened(**answer), self.stream)
        self.opening = next(self.stream).open
        self.written: dict[int, pb.Frame] = {}

    def push(self, pose: Pose | None = None, instruction: str = "") -> int:
        return self.push_captured(self.clock.now_ns(), pose, instruction)

    def push_captured(self, captured_ns: int, pose: Pose | None = None, instruction: str = "") -> int:
        return self.session.push([b""], (), pose or identity(), instruction, captured_ns)

    def write(self) -> pb.Frame:
        """The network takes what waits; returns the frame."""
        while True:
            message = next(self.stream)
            if message.HasField("frame"):
                self.written[message.frame.seq] = message.frame
                return message.frame

    def act(self, frame: pb.Frame, epoch: int = 1, values=VALUES, valid_for_ms: int = 100, **changed) -> bool:
        fields = {"seq": frame.seq, "stamp_ns": frame.stamp_ns} | changed
        message = pb.Action(epoch=epoch, command=pb.COMMAND_ACT, valid_for_ms=valid_for_ms, values=values, **fields)
        return self.session.stream_message(pb.ServerMessage(action=message))

    def say_epoch(self, epoch: int) -> None:
        self.session.stream_message(pb.ServerMessage(notice=pb.Notice(kind="epoch", epoch=epoch)))

    def status(self, seq: int, disposition: int, last_seq: int = 0, **fields) -> None:
        message = pb.FrameStatus(seq=seq, disposition=disposition, last_seq=last_seq, **fields)
        self.session.stream_message(pb.ServerMessage(frame_status=message))


@pytest.fixture
def robot() -> StreamSession:
    made = StreamSession()
    made.open()
    return made


def at(x: float) -> Pose:
    return Pose(np.array([x, 0.0, 0.0]), wxyz=identity().wxyz)


def test_every_action_is_anchored_to_the_pose_of_its_own_frame(robot: StreamSession):
    frames = []
    for x in (1.0, 2.0, 3.0):
        robot.push(at(x))
        frames.append(robot.write())
    for index in (0, 2):
        assert robot.act(frames[index])
        target = robot.session.directive().tool
        assert target is not None and target.pose is not None
        assert target.pose.position[0] == pytest.approx(index + 1.01)
    assert not robot.act(frames[1]), "an older result came late"
    assert robot.session.directive().action.seq == 3


def test_age_is_measured_on_our_clock_from_the_echoed_stamp(robot: StreamSession):
    robot.push()
    robot.clock.advance_ns(70 * MS)
    robot.act(robot.write())
    assert robot.session.directive().action.age_ns == 70 * MS
    assert robot.session.statistics().age_max_ns == 70 * MS


@pytest.mark.parametrize(
    ("age_ns", "reason"), [(0, None), (60_000 * MS, None), (-1, "STAMP_FUTURE"), (60_000 * MS + 1, "STAMP_OLD")]
)
def test_a_frame_was_captured_in_the_last_minute(robot: StreamSession, age_ns, reason):
    robot.clock.advance_ns(100_000 * MS)
    if reason is None:
        assert robot.push_captured(robot.clock.now_ns() - age_ns) == 1
        return
    with pytest.raises(InvalidArgument) as refused:
        robot.push_captured(robot.clock.now_ns() - age_ns, instruction="place")
    assert (refused.value.field, refused.value.reason) == ("captured_ns", reason)
    assert robot.session.statistics().offered == 0
    robot.push()
    assert robot.write().instruction == "grasp"


@pytest.mark.parametrize("captured_ns", ["now", 1e9, math.nan, [1]])
def test_a_capture_time_is_integer_nanoseconds(robot: StreamSession, captured_ns):
    with pytest.raises(InvalidArgument, match="captured_ns: must be integer nanoseconds of the client's clock"):
        robot.push_captured(captured_ns)
    assert robot.push_captured(np.int64(robot.clock.now_ns())) == 1
    assert robot.write().stamp_ns == robot.clock.now_ns()


def test_a_validity_beyond_the_cap_is_cut(robot: StreamSession):
    robot.push()
    robot.act(robot.write(), valid_for_ms=60_000)
    robot.clock.advance_ns(500 * MS)
    assert robot.session.directive().command is Command.HOLD


@pytest.mark.parametrize(("predicted_fps", "warns"), [(1.9, True), (2.1, False), (0.0, False)])
def test_answers_that_come_less_often_than_one_may_be_executed_are_warned_of(predicted_fps: float, warns: bool, caplog):
    robot = StreamSession()
    answer = opened(500)
    answer.predicted_fps = predicted_fps
    robot.session.stream_opened(answer, OutgoingMessages(robot.session.opening()))
    assert ("timing.longest_ttl_ms" in caplog.text) == warns


def test_an_action_is_not_executed_once_its_frame_is_too_old():
    robot = StreamSession(max_action_age_s=0.08)
    robot.open()
    robot.push()
    robot.clock.advance_ns(50 * MS)
    assert robot.act(robot.write())
    robot.clock.advance_ns(30 * MS)
    assert robot.session.directive().command is Command.HOLD


@pytest.mark.parametrize("limit_s", [None, 0.3, math.inf])
def test_an_action_that_arrives_beyond_its_limit_is_ignored_also_the_first(limit_s):
    robot = StreamSession(limit_s)
    robot.open()
    for event in ("first action", "after a reset", "on a new stream"):
        robot.push()
        frame = robot.write()
        robot.clock.advance_ns(300 * MS)
        assert robot.act(frame, max_age_ms=300) is (limit_s == math.inf), event
        if event == "first action":
            robot.session.reset("")
        else:
            robot.session.stream_ended(Unavailable("gone"), final=False)
            robot.open()
            robot.session.reset("")
    counts = robot.session.statistics()
    assert (counts.too_old, counts.actions, counts.ignored) == ((0, 3, 0) if limit_s == math.inf else (3, 0, 0))


def test_the_validity_of_an_action_ends_with_its_age_limit(robot: StreamSession):
    robot.push()
    frame = robot.write()
    robot.clock.advance_ns(250 * MS)
    assert robot.act(frame, max_age_ms=300)
    action = robot.session.directive().action
    assert (action.age_limit_ns, action.valid_until_ns) == (300 * MS, frame.stamp_ns + 300 * MS)
    robot.clock.advance_ns(50 * MS)
    held = robot.session.directive()
    assert (held.command, held.reason) == (Command.HOLD, "SILENCE")


def test_a_service_that_sends_no_limits_gets_validity_and_forecast():
    robot = StreamSession()
    robot.open(predicted_age_ms=50.0)
    for late_ms, acts in ((149, True), (150, False)):
        robot.push()
        frame = robot.write()
        robot.clock.advance_ns(late_ms * MS)
        assert robot.act(frame) is acts


def test_values_outside_the_limits_mean_hold(robot: StreamSession):
    for value, acts in ((1.0, True), (-1.00001, True), (1.001, False), (1e300, False)):
        robot.push()
        assert robot.act(robot.write(), values=[value, *VALUES[1:]]) is acts
    assert robot.session.directive().reason == "ACTION_OUT_OF_LIMITS"


@pytest.mark.parametrize("epoch", [0, 2, 2**63, 2**64 - 1])
def test_an_epoch_that_nobody_announced_is_ignored_and_leaves_no_trace(robot: StreamSession, epoch):
    robot.push()
    assert not robot.act(robot.write(), epoch=epoch)
    robot.push()
    assert robot.act(robot.write(), epoch=1)


def test_the_robots_own_changes_may_be_acted_on_before_they_are_announced(robot: StreamSession):
    robot.session.reset("")
    robot.push(instruction="place")
    frame = robot.write()
    assert not robot.act(frame, epoch=4)
    assert robot.act(frame, epoch=3)
    robot.say_epoch(3)
    robot.push()
    assert not robot.act(robot.write(), epoch=4), "both changes were announced"
    robot.push()
    assert robot.act(robot.write(), epoch=3)


def test_a_new_stream_knows_nothing_of_earlier_changes(robot: StreamSession):
    robot.session.reset("")
    robot.session.stream_ended(Unavailable("gone"), final=False)
    robot.open()
    robot.push()
    assert not robot.act(robot.write(), epoch=2)


@pytest.mark.parametrize(
    "broken", [{"values": [0.0] * 6}, {"values": [float("nan")] * 7}, {"values": [float("inf")] * 7}, {"stamp_ns": 5}]
)
def test_an_action_that_cannot_be_executed_means_hold(robot: StreamSession, broken):
    robot.push()
    assert not robot.act(robot.write(), **broken)
    assert robot.session.directive().reason == "MALFORMED_ACTION"


def test_an_answer_to_a_frame_that_was_never_sent_is_ignored(robot: StreamSession):
    robot.push()
    robot.write()
    assert not robot.act(pb.Frame(seq=9, stamp_ns=1))
    assert robot.session.statistics().ignored == 1


def test_results_of_before_a_reset_are_ignored_whatever_their_epoch(robot: StreamSession):
    robot.push()
    before = robot.write()
    robot.session.reset("place")
    assert robot.session.directive().reason == "RESET"
    assert not robot.act(before, epoch=1)
    assert not robot.act(before, epoch=2)
    assert next(robot.stream).reset.instruction == "place"
    robot.push()
    assert robot.act(robot.write(), epoch=2)


def test_a_new_instruction_holds_until_a_frame_that_knows_it_is_answered(robot: StreamSession):
    robot.push()
    before = robot.write()
    assert robot.act(before)
    robot.push(instruction="place")
    assert robot.session.directive().reason == "NEW_INSTRUCTION"
    robot.push()
    assert robot.write().instruction == "place", "the frame that told it was replaced"
    robot.session.stream_ended(Unavailable("gone"), final=False)
    robot.open()
    assert robot.opening.instruction == "place"


def test_a_new_stream_numbers_from_one_and_takes_nothing_along(robot: StreamSession):
    robot.push()
    old = robot.write()
    robot.push()
    robot.session.stream_ended(Unavailable("gone"), final=False)
    assert robot.push() == 3, "nobody listens, the robot goes on"
    robot.open()
    assert robot.session.statistics().dropped == 3
    assert not robot.act(old)
    assert robot.push() == 4
    frame = robot.write()
    assert frame.seq == 1
    assert robot.act(frame)
    assert robot.session.directive().action.seq == 4


def test_a_final_rejection_is_raised_by_the_next_push(robot: StreamSession):
    robot.session.stream_ended(NotFound("no such model"), final=True)
    assert robot.session.directive().reason == "REFUSED"
    with pytest.raises(NotFound):
        robot.push()


def test_after_close_no_action_is_accepted(robot: StreamSession):
    robot.push()
    frame = robot.write()
    robot.session.close()
    assert not robot.act(frame)
    robot.session.stream_ended(Unavailable("gone"), final=False)
    assert robot.session.directive().reason == "CLOSED"
    with pytest.raises(FailedPrecondition):
        robot.push()


def test_why_a_frame_was_rejected_is_kept(robot: StreamSession):
    robot.push()
    robot.status(1, pb.DISPOSITION_REJECTED, code="INVALID_ARGUMENT", reason="IMAGE_WRONG_SIZE", text="8x6 agreed")
    counts = robot.session.statistics()
    assert counts.rejected == 1
    assert counts.last_refusal == "INVALID_ARGUMENT IMAGE_WRONG_SIZE: 8x6 agreed"


def test_an_action_says_how_its_drafts_were_verified(robot: StreamSession):
    robot.push()
    assert robot.act(robot.write(), token_ids=[5, 6, 7], settled=2, tolerance_bins=1, max_passes=2)
    action = robot.session.directive().action
    assert action is not None
    assert (len(action.token_ids), action.settled, action.tolerance_bins, action.max_passes) == (3, 2, 1, 2)


def test_overtaken_frames_are_counted_among_the_superseded(robot: StreamSession):
    for _ in range(4):
        robot.push()
        robot.write()
    robot.status(1, pb.DISPOSITION_SUPERSEDED, reason="SUPERSEDED", text="replaced")
    robot.status(2, pb.DISPOSITION_SUPERSEDED, last_seq=3, reason="OVERTAKEN", text="overtaken")
    robot.status(3, pb.DISPOSITION_SUPERSEDED, reason="OVERTAKEN", text="told twice")
    counts = robot.session.statistics()
    assert (counts.superseded, counts.overtaken, counts.in_flight) == (3, 2, 1)


def test_frames_that_are_never_disposed_of_do_not_pile_up(robot: StreamSession):
    for _ in range(1000):
        robot.push()
        robot.write()
    counts = robot.session.statistics()
    assert counts.in_flight == 512
    assert counts.dropped == 1000 - 512


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["push", "write", "reset", "lose", "open", "instruct"]),
        st.tuples(st.just("pass"), st.integers(1, 150)),
        st.tuples(st.just("act"), st.integers(1, 12), st.integers(1, 3)),
        st.tuples(st.just("status"), st.integers(1, 12), st.integers(0, 12), st.integers(1, 4)),
    ),
    max_size=80,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_every_frame_is_in_flight_or_has_one_disposition_and_actions_only_grow(steps):
    robot = StreamSession()
    robot.open()
    up, asked, restarted_at = True, 0, 0
    waiting = False
    given_out: list[int] = []
    for step in steps:
        match step:
            case "push" | "instruct":
                if step == "instruct":
                    restarted_at, asked = robot.session.flight.last_seq, asked + up
                robot.push(instruction="other" + str(restarted_at) if step == "instruct" else "")
                waiting = up
            case "write" if waiting:
                robot.write()
                waiting = False
            case "reset":
                robot.session.reset("")
                restarted_at, waiting, asked = robot.session.flight.last_seq, False, asked + up
            case "lose" if up:
                robot.session.stream_ended(Unavailable("gone"), final=False)
                up = waiting = False
            case "open" if not up:
                robot.open()
                up, asked = True, 0
            case ("pass", ms):
                robot.clock.advance_ns(ms * MS)
            case ("act", seq, of_epoch) if up and seq in robot.written:
                accepted = robot.act(robot.written[seq], of_epoch)
                assert not (accepted and of_epoch > 1 + asked)
            case ("status", seq, last, disposition) if up and seq in robot.written:
                robot.status(seq, disposition, last)
        now = robot.session.directive()
        if now.action is not None:
            assert robot.clock.now_ns() < now.action.valid_until_ns
            assert now.action.seq > restarted_at
            given_out.append(now.action.seq)
        assert up or now.command is Command.HOLD
        counts = robot.session.statistics()
        left = counts.acted + counts.superseded + counts.rejected + counts.dropped
        assert counts.offered == counts.in_flight + left
    assert all(older <= newer for older, newer in pairwise(given_out))
