"""Chunks that follow each other on a device that runs behind the host: the next frame knows the answer before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import PROMPT, Observation, Pace, PolicyInputs, Stage, StageProgram
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.records import AnswerBook
from edgeflow.engine.executor import Chunked, Ticket
from edgeflow.engine.flow.frames import Previous, RTCSettings
from edgeflow.engine.policy import Vectors
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.scheduler.plan import FrameRef, Pass
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.trajectory import Playing
from edgeflow_client.types import ActionSchema, StateSpec
from tests.worker.simulated_device import MS, SimulatedStamp

STEPS, ROWS, STEP_MS, PASS_MS = 3, 30, 50, 25
START_NS = 1_000 * MS
SCHEMA = ActionSchema(
    names=("joint",),
    units=("rad",),
    low=(-9.0,),
    high=(9.0,),
    relative=(False,),
    control_rate_hz=1000 / STEP_MS,
    frame="base",
    rotation="euler_xyz",
    horizon=ROWS,
    step_ms=STEP_MS,
)


class RowPolicy:
    inputs = PolicyInputs(cameras=(), state=(StateSpec(name="state", size=1),))
    unnorm_keys = ("data",)
    fixed_rows = 1
    rtc = RTCSettings()
    unusual_states = 0

    def action_schema(self, key: str | None = None) -> ActionSchema:
        return SCHEMA

    def program(self, key: str | None = None) -> StageProgram:
        return StageProgram((Stage(rows=PROMPT), Stage(rows=ROWS, repeats=STEPS, group=1, advances=False)))

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        return 4

    def prepare(self, observation: Observation) -> Observation:
        return observation


class DistantEngine:
    """An engine whose device takes PASS_MS for a pass. asked: the rows that each answer was to continue."""

    near: tuple[int, ...] = ()
    graphs = record = None
    text_rows, sessions, kv_bytes = 100, 1, 0

    def __init__(self, clock: ManualClock, ahead: int) -> None:
        self.policy, self.launch_ahead = RowPolicy(), ahead
        self.asked: list[Previous] = []
        self._clock, self._free_ns = clock, 0

    def stamp(self) -> SimulatedStamp:
        now_ns = self._clock.now_ns()
        return SimulatedStamp(self._clock, now_ns, max(now_ns, self._free_ns))

    def answers(self) -> AnswerBook:
        return AnswerBook(lambda frame, passes, outcomes: PassEngine.answer(self, frame, passes, outcomes))

    def launch(self, planned: Pass[FrameRef], prompts: Mapping[FrameRef, Any]) -> Ticket[FrameRef]:
        started = self.stamp()
        self._free_ns = max(self._free_ns, self._clock.now_ns()) + PASS_MS * MS
        return Ticket(planned=planned, shape=None, results=None, started=started, done=self.stamp())

    def collect(self, ticket: Ticket[FrameRef]) -> list[Chunked]:
        ticket.done.wait()
        done = [(each, each.stage == STEPS) for each in ticket.planned.segments]
        return [
            Chunked(each.sequence, (), True, values=np.full((1, ROWS, 1), each.sequence.seq % 7) if last else None)
            for each, last in done
        ]

    def continued(self, prompt: Observation, previous: Previous) -> object:
        self.asked.append(previous)
        return object()

    def actions(self, answer: Any, key: str | None, candidate: int = 0) -> np.ndarray:
        return np.asarray(answer.values[candidate], float)

    def as_sent(self, values: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return values


@dataclass
class RowPlayer:
    """A robot that plays the row that is due. continues, late: of its answers. commands: at each moment of a row."""

    clock: ManualClock
    late: int = 0
    continues: list[int] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    captured: dict[int, int] = field(default_factory=dict)
    playing: FrameResult | None = None

    def live(self) -> None:
        """Obey up to now."""
        while START_NS + len(self.commands) * STEP_MS * MS < self.clock.now_ns():
            moment_ns = START_NS + len(self.commands) * STEP_MS * MS
            command = 0.0 if self.playing is None else self.playing.chunk.values[self.row(self.playing.seq, moment_ns)]
            self.commands.append(command)

    def row(self, seq: int, moment_ns: int) -> int:
        return min((moment_ns - self.captured[seq]) // (STEP_MS * MS), ROWS - 1)

    def hear(self, message: Message) -> None:
        self.live()
        if not isinstance(message, FrameResult):
            return
        seq, report = message.seq, message.report
        self.continues.append(report.continues)
        late = self.clock.now_ns() - self.captured[seq] > report.conditioned_steps * STEP_MS * MS
        if report.continues and (late or self.playing is None or report.continues != self.playing.seq):
            self.late += 1
        else:
            self.playing = message

    def frame(self) -> SubmitFrame:
        """What it sees now."""
        now_ns, seq = self.clock.now_ns(), len(self.captured) + 1
        self.captured[seq] = now_ns
        playing = self.playing
        return SubmitFrame(
            session=1,
            epoch=1,
            seq=seq,
            sizes=[],
            instruction="go",
            payload=b"",
            state=[self.commands[-1] if self.commands else 0.0],
            stamp_ns=now_ns,
            playing=Playing(playing.seq, self.row(playing.seq, now_ns)) if playing else None,
            delay_ns=3 * STEP_MS * MS,
            seen_only=playing is None and seq > 1,  # until the answer to a robot that rests has arrived
        )


def lived(ahead: int, *, limits: dict[str, Any] | None = None, rtc: bool = True, answers: int = 40) -> RowPlayer:
    """A robot with a serial session and a camera that is faster than a chunk."""
    clock = ManualClock(START_NS)
    robot, engine = RowPlayer(clock), DistantEngine(clock, ahead)
    scheduler = Scheduler(SchedulerLimits(STEPS + 1, 1, row_budget=4096, drain_after_ns=5 * MS))
    trajectory = TrajectoryConfig.model_validate({"limits": limits or {}})
    worker = Worker(engine, scheduler, clock, robot.hear, trajectory=trajectory)  # type: ignore[arg-type]
    worker.inbox.put(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="", continues=rtc))
    while len(robot.continues) < answers:
        robot.live()
        next_ns = START_NS + len(robot.captured) * STEP_MS * MS
        if next_ns <= clock.now_ns():
            worker.inbox.put(robot.frame())
        elif not worker.step():
            clock.advance_to_ns(next_ns)
    return robot


@pytest.mark.parametrize("ahead", [0, 1])
def test_serial_answers_continue_each_other_also_where_a_pass_is_launched_ahead(ahead: int):
    robot = lived(ahead)
    assert robot.late == 0
    assert all(robot.continues[2:])


@pytest.mark.parametrize("ahead", [0, 1])
def test_answers_launched_before_any_was_sent_keep_the_limits_too(ahead: int):
    limits = {"joint": {"velocity": 1.0, "acceleration": 4.0, "state": "state[0]"}}
    robot = lived(ahead, limits=limits, rtc=False)
    speeds = np.diff(robot.commands) * 1000 / STEP_MS
    assert np.abs(speeds).max() <= 1.0 + 1e-6
    assert np.abs(np.diff(speeds)).max() * 1000 / STEP_MS <= 4.0 + 1e-6
    assert np.abs(speeds).max() > 0.5
