"""A session and the SDK's, without sockets: what is executed when, until when, and which frames are answered."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from edgeflow.contract import Chunk
from edgeflow.ipc.messages import FrameResult, SubmitFrame
from edgeflow.scheduler.execution import LOST_NS, ExecutionFacts
from edgeflow.scheduler.forecast import AnswerForecast
from edgeflow.service.frontends.grpc.stream import opened_message, server_message
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.answers import LONGEST_FORECAST_MS, PolicyFacts
from edgeflow.service.sessions.frames import ActionEvent, Event, NoticeEvent, StatusEvent
from edgeflow.service.sessions.observers import Metrics, Observers
from edgeflow.service.sessions.session import Session
from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.pose import identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.trajectory import Arrived, ChunkReport, Playing
from edgeflow_client.types import Command, Disposition, Execution
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_admission import make, ready
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES

HORIZON, STEP_MS = 40, 50
WIDE = replace(SCHEMA, horizon=HORIZON, step_ms=float(STEP_MS))
FACTS = ExecutionFacts.of(WIDE, 10, continues=True, timed=False)
CHUNK = Chunk((0.0, 0.0, 1.0) * HORIZON, HORIZON, float(STEP_MS))
PERIOD_MS, FORECAST_MS, GAP_MS = 100, 300, 600


class ServedRobot:
    """A robot with the SDK, at the same clock as the service, and a transport that takes no time."""

    def __init__(
        self,
        asked: Execution,
        *,
        forecast_ms: int = FORECAST_MS,
        keeps_history: bool = False,
        longest_ms: int = LONGEST_FORECAST_MS,
    ) -> None:
        self.clock = ManualClock(1000 * MS)
        request = replace(REQUEST, chunks=True, execution=asked, max_action_age_ns=None)
        policy = PolicyFacts(facts=FACTS, keeps_history=keeps_history)
        rules = replace(RULES, longest_ttl_ms=longest_ms)
        self.service = Session(1, request, WIDE, rules, self.clock.now_ns(), policy)
        forecast = AnswerForecast(age_ns=forecast_ms * MS, gap_ns=GAP_MS * MS)
        self.service.answers.take_forecast(forecast)
        settings = SessionSettings(cameras=(), control_period_s=PERIOD_MS / 1e3, execution=asked)
        self.robot = ClientSession(settings, "first", self.clock, 2000 * MS)
        self.stream = OutgoingMessages(self.robot.opening())
        next(self.stream)  # Open
        admission = make()
        admission.worker_ready(ready())
        plan = admission.plan(request, ())
        opened = opened_message(1, WIDE, plan, model="m", answers=self.service.answers, request=request).opened
        self.robot.stream_opened(opened, self.stream)
        self.events: list[Event] = []

    def wait(self, ms: float) -> None:
        self.clock.advance_ns(round(ms * MS))

    def frame(self) -> SubmitFrame | None:
        """A frame, as far as the worker; None if it is not passed on."""
        now_ns, service = self.clock.now_ns(), self.service
        self.robot.push([b"abc"], (), identity(), "", now_ns)
        sent = next(self.stream).frame
        service.admit(sent.seq, now_ns, now_ns)
        playing = sent.playing if sent.HasField("playing") else None
        arrived = sent.arrived if sent.HasField("arrived") else None
        checked = CheckedFrame(
            seq=sent.seq,
            stamp_ns=now_ns,
            images=(b"abc",),
            playing=None if playing is None else Playing(playing.seq, playing.step, playing.start_ns),
            arrived=None if arrived is None else Arrived(arrived.seq, arrived.age_ns),
            resting=sent.resting,
        )
        if checked.arrived is not None:
            service.answers.arrived(checked.arrived.seq, checked.arrived.age_ns)
        service.offer(checked, now_ns)
        if service.start_decoding(now_ns, alone=True) is None:
            return None
        service.decoded(b"abc", 1)
        return service.start_sending(now_ns)

    def frame_answered_late(self, stalled_ms: float) -> None:
        """The answer to a frame that is taken now leaves the service at once, and arrives after a stalled link."""
        frame = self.frame()
        assert frame is not None
        self.result(frame, 0)
        sent = self.service.take(self.clock.now_ns())
        self.wait(stalled_ms)
        for event in sent:
            self.robot.stream_message(server_message(event))

    def answered(self, took_ms: float = FORECAST_MS) -> pb.Action | None:
        """The answer to a frame that is taken now, at the robot; None if the frame is not answered."""
        frame = self.frame()
        if frame is None:
            return None
        self.wait(took_ms)
        self.result(frame, took_ms)
        new = self.service.take(self.clock.now_ns())
        self.events += new
        actions = []
        for event in new:
            message = server_message(event)
            accepted = self.robot.stream_message(message)
            if message.WhichOneof("kind") == "action":
                assert accepted, self.robot.flight.statistics()
                actions.append(message.action)
        (action,) = actions
        return action

    def result(self, frame: SubmitFrame, took_ms: float, *, valid: bool = True) -> None:
        """The worker's answer to a frame."""
        self.service.result(
            FrameResult(
                session=1,
                epoch=frame.epoch,
                seq=frame.seq,
                chunk=CHUNK,
                token_ids=[],
                valid=valid,
                queue_ns=0,
                inference_ns=round(took_ms * MS),
                passes=1,
                settled=0,
                report=ChunkReport(),
            )
        )


@pytest.mark.parametrize(
    ("asked", "answers", "valid_ms"),
    [
        (Execution.AUTO, 1, FORECAST_MS + 2 * PERIOD_MS),  # a frame of its motion, and that one's answer
        (Execution.CONTINUE, 2, GAP_MS + PERIOD_MS),
        (Execution.FRESH, 2, GAP_MS + PERIOD_MS),
        (Execution.SLOW, 2, GAP_MS + PERIOD_MS),
        (Execution.REST, 1, 8 * STEP_MS + FORECAST_MS + 2 * PERIOD_MS),  # eight rows, a frame, and its answer
    ],
)
def test_silence_becomes_hold_when_the_next_answer_is_overdue(asked: Execution, answers: int, valid_ms: int):
    served = ServedRobot(asked)
    for _ in range(answers):
        action = served.answered()
        assert action is not None and served.robot.directive().command is Command.ACT
    assert action.valid_for_ms == valid_ms
    served.wait(valid_ms - 1)
    assert served.robot.directive().command is Command.ACT
    served.wait(1)
    assert (served.robot.directive().command, served.robot.directive().reason) == (Command.HOLD, "SILENCE")


@pytest.mark.parametrize(
    ("asked", "execution", "valid_ms", "rows"),
    [
        (Execution.AUTO, Execution.CONTINUE, GAP_MS + PERIOD_MS, 15),
        (Execution.SLOW, Execution.SLOW, GAP_MS + PERIOD_MS, 12),  # at 75 % of the rate
        (Execution.REST, Execution.REST, 8 * STEP_MS + FORECAST_MS + 2 * PERIOD_MS, 8),
    ],
)
def test_open_says_how_and_for_how_long_answers_are_executed_and_how_far_an_arm_goes(asked, execution, valid_ms, rows):
    opened = ServedRobot(asked).robot.opened
    assert opened is not None and opened.execution is execution
    assert opened.valid_for_s == valid_ms / 1e3
    assert opened.unheard_m == pytest.approx(rows * math.sqrt(2))  # each row displaces x and y by 1 m at most


@pytest.mark.parametrize("asked", [each for each in Execution if each is not Execution.AUTO])
def test_a_robot_that_chose_its_execution_moves_no_longer_than_configured_without_an_answer(asked: Execution):
    served = ServedRobot(asked, forecast_ms=600, longest_ms=500)
    action = served.answered(600)
    assert action is not None
    if asked is Execution.REST:
        assert action.rows == 10, "it stands still for the rest of its validity"
        return
    assert served.robot.opened is not None and served.robot.opened.valid_for_s == 0.5
    assert (served.answered() or action).valid_for_ms == 500
    served.wait(500)
    assert served.robot.directive().command is Command.HOLD


@pytest.mark.parametrize("took_ms", [300, 310, 349])
def test_a_robot_that_hears_nothing_executes_no_more_rows_than_it_was_told(took_ms: int):
    served = ServedRobot(Execution.FRESH)
    served.answered()
    action = served.answered(took_ms)
    opened, first = served.robot.opened, served.robot.directive().action
    assert action is not None and opened is not None and first is not None
    served.wait(action.valid_for_ms - 1)
    last = served.robot.directive().action
    assert last is not None and (last.step - first.step + 1) * math.sqrt(2) <= opened.unheard_m


def test_a_change_is_told_with_its_reason_and_goes_through_a_rest():
    served = ServedRobot(Execution.AUTO)
    for took_ms in (300, 1200, 1200, 1200):
        action = served.answered(took_ms)
        assert action is not None and (action.execution, action.rows) == (pb.EXECUTION_CONTINUE, 0)
    last = served.answered(1200)
    assert last is not None and last.execution == pb.EXECUTION_CONTINUE and not last.from_arrival
    (notice,) = [each for each in served.events if isinstance(each, NoticeEvent) and each.kind == "execution"]
    assert notice.text == "rest: answers take 1200 ms, and the policy bridges 500 ms"
    assert last.rows == HORIZON  # 24 until it arrives, and half of a chunk after that
    assert served.answered() is None, "it is still in motion"
    served.wait(last.rows * STEP_MS)
    rested = served.answered(1200)
    assert rested is not None
    assert (rested.execution, rested.from_arrival, rested.rows) == (pb.EXECUTION_REST, True, HORIZON // 2)


@pytest.mark.parametrize("keeps_history", [False, True])
def test_frames_of_a_history_reach_the_worker_though_they_are_not_answered(keeps_history: bool):
    served = ServedRobot(Execution.AUTO, keeps_history=keeps_history)
    first = served.frame()
    assert first is not None and not first.seen_only and first.start_delay_ns == first.delay_ns == FORECAST_MS * MS
    served.wait(PERIOD_MS)
    second = served.frame()  # the robot waits for the first answer
    assert second is None if not keeps_history else second is not None and second.seen_only


@pytest.mark.parametrize("asked", [Execution.AUTO, Execution.FRESH, Execution.REST])
def test_a_first_inference_that_takes_700_ms_longer_skips_no_rows_and_is_forgotten(asked: Execution):
    served = ServedRobot(asked, forecast_ms=30)
    action = served.answered(730)
    first = served.robot.directive().action
    assert action is not None and first is not None and (first.seq, first.step) == (1, 0)
    served.wait(2 * STEP_MS)
    following = served.robot.directive().action
    assert following is not None and following.step == 1  # rows are whole steps from the capture, so for 750 and 800 ms
    if asked is Execution.REST:
        served.wait(action.rows * STEP_MS)
    second = served.answered(30)
    assert second is not None and second.execution == action.execution
    assert second.max_age_ms < 1000  # the slow answer is no reason to permit old ones
    third = served.frame() if asked is not Execution.REST else None
    assert served.service.answers.expected_delay_ns == 30 * MS
    assert third is None or third.delay_ns == 30 * MS


@pytest.mark.parametrize("asked", [Execution.AUTO, Execution.REST])
def test_an_answer_that_a_robot_at_rest_gets_after_its_age_limit_is_not_executed(asked: Execution):
    served = ServedRobot(asked)
    last_row_ms = (HORIZON - 1) * STEP_MS
    for stalled_ms in (30_000, last_row_ms):
        served.frame_answered_late(stalled_ms)
        assert served.robot.directive().command is (Command.HOLD if stalled_ms > last_row_ms else Command.ACT)
    assert served.robot.statistics().too_old == 1


def test_a_late_answer_that_moves_a_robot_again_leaves_no_frame_from_its_rest_to_be_answered():
    served = ServedRobot(Execution.FRESH)
    action = served.answered()
    served.wait(PERIOD_MS)
    moving = served.frame()
    assert action is not None and moving is not None
    served.wait(action.valid_for_ms)
    assert served.robot.directive().command is Command.HOLD
    assert served.frame() is None, "another frame is with the worker"
    served.result(moving, action.valid_for_ms)
    for event in served.service.take(served.clock.now_ns()):
        served.robot.stream_message(server_message(event))
    now = served.robot.directive().action
    assert now is not None and now.seq == moving.seq
    # Rows from the arrival would begin anew in mid-motion.
    assert served.service.start_decoding(served.clock.now_ns(), alone=True) is None


@pytest.mark.parametrize("asked", [Execution.AUTO, Execution.REST])
def test_reports_of_absurd_ages_do_not_extend_the_validity_for_ever(asked: Execution):
    served = ServedRobot(asked)
    for seq in range(1, 60):
        now_ns, service = served.clock.now_ns(), served.service
        service.admit(seq, now_ns, now_ns)
        service.answers.arrived(seq - 1, 2**64 - 1)
        arrived = Arrived(seq - 1, 2**64 - 1)
        service.offer(CheckedFrame(seq=seq, stamp_ns=now_ns, images=(b"",), arrived=arrived, resting=True), now_ns)
        assert service.start_decoding(now_ns, alone=True) is not None
        service.decoded(b"", 1)
        frame = service.start_sending(now_ns)
        assert frame is not None
        served.wait(PERIOD_MS)
        served.result(frame, PERIOD_MS)
        (action,) = (each for each in service.take(served.clock.now_ns()) if isinstance(each, ActionEvent))
    assert action.valid_for_ms == LONGEST_FORECAST_MS and action.max_age_ms < LONGEST_FORECAST_MS + 1000


def outcomes(served: ServedRobot) -> list[tuple[int, Disposition]]:
    """The outcomes of frames that the service tells without another frame."""
    assert served.service.start_sending(served.clock.now_ns()) is None
    events = served.service.take(served.clock.now_ns())
    return [(each.seq, each.disposition) for each in events if isinstance(each, StatusEvent)]


def test_a_frame_from_before_a_hold_leaves_so_that_a_robot_does_not_wait_for_its_answer():
    served = ServedRobot(Execution.FRESH)
    served.answered()
    served.wait(PERIOD_MS)
    moving = served.frame()
    assert moving is not None
    served.result(moving, 0, valid=False)
    held = served.service.take(served.clock.now_ns())
    assert served.frame() is None, "it was taken before the robot heard that it holds"
    assert outcomes(served) == [(3, Disposition.SUPERSEDED)]
    for event in held:
        served.robot.stream_message(server_message(event))
    assert served.answered() is not None


def test_a_frame_from_a_motion_that_leads_to_a_rest_leaves_at_once():
    served = ServedRobot(Execution.REST)
    served.answered()
    assert served.frame() is None and outcomes(served) == [(2, Disposition.SUPERSEDED)]


def test_an_answer_that_was_believed_lost_leaves_the_next_one_no_robot_at_rest():
    served = ServedRobot(Execution.FRESH)
    first = served.frame()
    assert first is not None
    served.result(first, 0)
    sent = served.service.take(served.clock.now_ns())
    served.wait(LOST_NS / MS)
    second = served.frame()
    assert second is not None and second.start_delay_ns
    served.result(second, 0)
    for event in (*sent, *served.service.take(served.clock.now_ns())):
        served.robot.stream_message(server_message(event))
    served.wait(3 * STEP_MS)
    action = served.robot.directive().action
    assert action is not None and (action.seq, action.step) == (first.seq, 3)


def test_answers_are_counted_by_their_execution():
    served, metrics = ServedRobot(Execution.REST), Metrics()
    served.answered()
    observers = Observers([metrics], EventLog(ManualClock(), io.StringIO()))
    for event in served.events:
        observers.sent(1, event)
    assert metrics.registry.get_sample_value("edgeflow_executions_total", {"execution": "rest"}) == 1
