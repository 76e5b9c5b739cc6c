"""Chunks in simulated time: an answer must keep exactly the rows that the robot executes until it arrives.

Every row that a policy does not keep has a unique number, which identifies it when it is executed. Frames are captured
at the moments of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgeflow.contract import Pace
from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.engine.flow.frames import Previous, RTCSettings
from edgeflow.lab.demo.simulated.client_robot import START_NS
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world import sim as world
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow_client.session import ClientSession
from edgeflow_client.types import Execution
from tests.lab.demo.simulated.one_pass import ROWS, STEP_MS, OnePassStub

MS = 1_000_000
STEP_NS = round(STEP_MS * MS)

pytestmark = pytest.mark.usefixtures("blind")


@dataclass(frozen=True, eq=False)
class AnswerInputs:
    """The inputs of an answer."""

    stamp_ns: int
    previous: Previous | None = None


class NumberedPolicy(OnePassStub):
    """answered: rows by the capture time of their frame. All dimensions of a row are its number."""

    rtc = RTCSettings()

    def __init__(self):
        self.answered: dict[int, np.ndarray] = {}

    def prepare(self, observation):
        return AnswerInputs(observation.stamp_ns)

    def chunks(self, frames):
        return torch.from_numpy(np.stack([self._rows(frame) for frame in frames]))

    def _rows(self, frame):
        numbers = (len(self.answered) * ROWS + np.arange(ROWS) + 1.0) * 1e-6
        rows = np.repeat(numbers[:, None], 7, axis=1)
        if frame.previous is not None:
            delay = frame.previous.delay
            rows[:delay] = frame.previous.values[:delay]
        self.answered[frame.stamp_ns] = rows
        return rows


class RecordingEngine(OnePassEngine):
    """An engine whose answers keep rows. asked: what each was asked to continue, by the capture time of its frame."""

    def __init__(self):
        super().__init__(NumberedPolicy(), 1, 10)
        self.asked: dict[int, Previous] = {}

    def continued(self, prompt, previous):
        self.asked[prompt.stamp_ns] = previous
        return replace(prompt, previous=previous)


@dataclass
class SDKRecord:
    """The record of an SDK."""

    arrivals: dict = field(default_factory=dict)
    """When each answer came, with its message, by the capture time of its frame."""
    looks: list = field(default_factory=list)
    """The times at which the robot looked at what it is to do, with the action, None = HOLD."""

    @property
    def late(self):
        """The frames whose answer continues a chunk and came when more rows had passed than it was made for."""
        return {
            action.seq
            for stamp_ns, (time_ns, action) in self.arrivals.items()
            if action.continues and time_ns - stamp_ns > action.conditioned_steps * STEP_NS
        }

    def played_at(self, instant_ns):
        """The row that was executed at an instant; None if there was none."""
        action = next((action for time_ns, action in reversed(self.looks) if time_ns <= instant_ns), None)
        return None if action is None else action.values

    def changes(self):
        """Where one chunk follows another: the action before, the time, the new action."""
        for (_, before), (time_ns, now) in pairwise(self.looks):
            if before is not None and now is not None and before.seq != now.seq:
                yield before, time_ns, now


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Episodes are over after 4 s."""
    monkeypatch.setattr(world, "TIME_LIMIT", 4.0)


@pytest.fixture
def heard(monkeypatch):
    log, directive, said = SDKRecord(), ClientSession.directive, ClientSession.stream_message

    def looked(session):
        found = directive(session)
        log.looks.append((session._clock.now_ns(), found.action))
        return found

    def heard(session, message):
        log.arrivals[message.action.stamp_ns] = session._clock.now_ns(), message.action
        return said(session, message)

    monkeypatch.setattr(ClientSession, "directive", looked)
    monkeypatch.setattr(ClientSession, "stream_message", heard)
    return log


def run(sim, execution, *, pass_ms=1, delay=None, period_s=0.05):
    """An episode, with its engine."""
    sim.reset(1)
    engine = RecordingEngine()
    times = DeviceProfile(name="even", prefill_ns=pass_ms * MS, decode_ns=0, packed_ns=pass_ms * MS).times(1)
    limits = SchedulerLimits(1, 1, row_budget=1000, drain_after_ns=0)
    service = VirtualService(engine, limits, times, execution=execution)
    return engine, service.run_episode(sim, Pace(1), period_s=period_s, anchored=True, delay=delay)


@pytest.mark.parametrize(
    ("pass_ms", "delay"),
    [
        (30, None),
        (105, None),  # the next frame is captured before the answer is there
        (1, Delay(180 * MS)),  # three more answers are on their way
        (1, Delay(120 * MS, 15 * MS, seed=1)),
    ],
)
def test_an_answer_must_keep_the_rows_that_are_executed_until_it_arrives(sim, heard, pass_ms, delay):
    engine, result = run(sim, Execution.CONTINUE, pass_ms=pass_ms, delay=delay)
    end_ns = START_NS + result.seconds * 1e9
    arrived = {stamp_ns: time_ns for stamp_ns, (time_ns, _) in heard.arrivals.items() if time_ns < end_ns}
    first_ns = min(arrived.values())  # until then the robot rests, and a delay beside the passes' is not known
    settled_ns = START_NS if delay is None else first_ns + 8 * STEP_NS
    known = {stamp_ns: time_ns for stamp_ns, time_ns in arrived.items() if stamp_ns >= settled_ns}
    known = {stamp_ns: time_ns for stamp_ns, time_ns in known.items() if stamp_ns in engine.asked}
    assert len(known) > 30
    for stamp_ns, time_ns in known.items():
        previous = engine.asked[stamp_ns]
        passed = -(-(time_ns - stamp_ns) // STEP_NS)
        assert passed <= previous.delay <= passed + 1
        for row in range(passed):
            instant_ns = stamp_ns + row * STEP_NS
            if instant_ns >= first_ns:
                assert np.array_equal(previous.values[row], heard.played_at(instant_ns))
    assert result.late <= (0 if delay is None else 8), "of the first answers"
    assert len(engine.policy.answered) - len(engine.asked) <= 4, "only those that found nothing played are fresh"


JITTERED = [(0.1, Delay(120 * MS, 40 * MS, seed=1)), (0.05, Delay(150 * MS, 60 * MS, seed=1))]


@pytest.mark.parametrize(("period_s", "delay"), JITTERED)
def test_an_immediate_answer_continues_from_the_row_in_execution(sim, heard, period_s, delay):
    run(sim, Execution.CONTINUE, delay=delay, period_s=period_s)
    arrivals = {action.seq: time_ns for time_ns, action in heard.arrivals.values()}
    at_once = [each for each in heard.changes() if each[2].report.continues and arrivals[each[2].seq] == each[1]]
    assert len(at_once) > 15
    for before, time_ns, now in at_once:
        assert now.report.continues == before.seq
        assert np.array_equal(now.values, before.chunk[before.timeline.step_at(time_ns)])


@pytest.mark.parametrize(("period_s", "delay"), JITTERED)
def test_a_late_answer_waits_for_the_rows_of_the_chunk_before_it(sim, heard, period_s, delay):
    _, result = run(sim, Execution.CONTINUE, delay=delay, period_s=period_s)
    after_late = [each for each in heard.changes() if each[2].late]
    assert heard.late
    assert result.late >= len(heard.late)
    assert result.late_played == len(after_late) < result.late
    assert all(time_ns >= before.over_ns for before, time_ns, _ in after_late)
    assert all(now.late for _, _, now in heard.changes() if now.seq in heard.late)


@pytest.mark.parametrize("delay", [None, Delay(180 * MS)])
def test_a_fresh_robot_continues_no_chunk(sim, heard, delay):
    engine, result = run(sim, Execution.FRESH, pass_ms=30, delay=delay)
    assert engine.asked == {}
    assert {(action.continues, action.conditioned_steps) for _, action in heard.arrivals.values()} == {(0, 0)}
    assert (result.late, result.late_played) == (0, 0)
    chunks = {action.stamp_ns: action.chunk for _, action in heard.looks if action is not None}
    assert len(chunks) > 30
    assert all(np.array_equal(chunk, engine.policy.answered[stamp_ns]) for stamp_ns, chunk in chunks.items())


@pytest.mark.parametrize("delay", [None, Delay(180 * MS)])
def test_a_resting_robot_starts_at_the_first_row_when_its_answer_arrives(sim, monkeypatch, delay):
    commands, command = [], RobotSim.command

    def commanded(robot, pose, aperture):
        commands.append((round(robot.time * 1e3), aperture))
        command(robot, pose, aperture)

    monkeypatch.setattr(RobotSim, "command", commanded)
    engine, result = run(sim, Execution.REST, pass_ms=30, delay=delay)
    assert engine.asked == {}
    wait_ms = 180 if delay else 30
    assert {each.age_ns for each in result.acted} == {wait_ms * MS}
    begun_ms = STEP_MS * round(wait_ms / STEP_MS)
    captured_ms, answered = [each.captured_ns // MS for each in result.acted], engine.policy.answered
    wanted = [
        (
            captured + (begun_ms + row * STEP_MS if row else wait_ms),
            answered[START_NS + captured * MS][row, 6],
        )
        for captured in captured_ms
        for row in range(ROWS // 2)
    ]
    assert commands == wanted[: len(commands)]
    assert len(wanted) - len(commands) < ROWS // 2
