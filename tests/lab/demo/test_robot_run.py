"""The robot in real time: with a stub world, and with the real one against a scripted service."""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow.lab.demo.robot_run import STATE, DemoRobot, RunPlan, run_robot
from edgeflow.lab.demo.world.expert import expert_action
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.actions import Action, Directive
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.pose import Pose, identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import ActionSchema, Command, Mode, StageTimings
from tests.client.scripted import NAMES, Server, Talk, opened

SCHEMA = ActionSchema(
    names=NAMES,
    units=("1",) * 7,
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
    relative=(True,) * 6 + (False,),
    frame="tool",
    rotation="rotvec",
)
IMAGE = np.zeros((96, 96, 3), np.uint8)


def at(x: float) -> Pose:
    return Pose(np.array([x, 0.0, 0.0]), wxyz=identity().wxyz)


class StubWorld:
    """Ends an episode after 50 ms of simulated time; notes the commands that it receives."""

    instruction = "grasp"
    aperture = 1.0

    def __init__(self, outcomes=(EpisodeOutcome.SUCCESS,)) -> None:
        self.outcomes, self.seeds = list(outcomes), []
        self.goals, self.holds = [], 0

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self.time, self.outcome = 0.0, EpisodeOutcome.RUNNING

    def step(self, seconds: float) -> None:
        self.time += seconds
        if self.time >= 0.05:
            self.outcome = self.outcomes[(len(self.seeds) - 1) % len(self.outcomes)]

    def pose(self) -> Pose:
        return at(2.0)

    def capture(self) -> np.ndarray:
        return IMAGE

    def command(self, goal: Pose, gripper: float) -> None:
        self.goals.append((goal.position[0], gripper))

    def hold(self) -> None:
        self.holds += 1


class StubClient:
    """Always says the same; the clock moves when it is asked."""

    class opened:
        mode, model = Mode.SERIAL, "stub"

    def __init__(self, clock: ManualClock, directive: Directive) -> None:
        self._clock, self._directive = clock, directive
        self.resets, self.pushed = [], []

    def push(self, image, pose, *, captured_ns: int, state) -> int:
        self.pushed.append(captured_ns)
        assert [len(vector) for vector in state.values()] == [STATE.size]
        return len(self.pushed)

    def latest(self) -> Directive:
        self._clock.advance_ns(5_000_000)
        return self._directive

    def reset(self, instruction: str | None = None) -> None:
        self.resets.append(instruction)

    def statistics(self) -> None:
        return None


def acting(seq: int = 1) -> Directive:
    values = np.array([0.1, 0, 0, 0, 0, 0, 0.0])
    action = Action(
        seq=seq,
        epoch=1,
        values=values,
        token_ids=(),
        schema=SCHEMA,
        stamp_ns=0,
        received_ns=7_000_000,
        valid_until_ns=99,
        frame_pose=at(1.0),
        timings=StageTimings(passes=3),
        server_ns=0,
    )
    return Directive(Command.ACT, action=action)


def play(plan: RunPlan, directive: Directive, outcomes=(EpisodeOutcome.SUCCESS,)):
    clock, world = ManualClock(), StubWorld(outcomes)
    client = StubClient(clock, directive)
    return DemoRobot(plan, world, client, clock).run(lambda progress: None), world, client


@pytest.mark.parametrize(("anchored", "goal"), [(True, 1.1), (False, 2.1)])
def test_an_action_is_resolved_against_its_frame_or_against_now(anchored, goal):
    run, world, _ = play(RunPlan(mode=Mode.SERIAL, episodes=1, anchored=anchored), acting())
    assert world.goals == [(pytest.approx(goal), 0.0)], "commanded once, not every tick"
    assert run.summary.actions == 1
    assert run.ages_ms.tolist() == [7.0]
    assert run.passes.tolist() == [3.0]


def test_hold_holds_and_a_long_silence_is_reset():
    _, world, client = play(RunPlan(mode=Mode.SERIAL, episodes=1), Directive(Command.HOLD, "SILENCE", needs_reset=True))
    assert world.holds == 1 and world.goals == []
    assert client.resets == ["grasp", None]


def test_stop_is_not_reset():
    _, world, client = play(RunPlan(mode=Mode.SERIAL, episodes=1), Directive(Command.STOP, "FAULT", needs_reset=True))
    assert world.holds == 1
    assert client.resets == ["grasp"]


def test_episodes_have_consecutive_seeds_and_all_count():
    outcomes = (EpisodeOutcome.SUCCESS, EpisodeOutcome.TIMEOUT, EpisodeOutcome.WRONG_TARGET)
    run, world, client = play(RunPlan(mode=Mode.SERIAL, episodes=3, seed=40), acting(), outcomes)
    assert world.seeds == [40, 41, 42]
    assert run.outcomes == outcomes and run.successes == 1
    assert client.resets == ["grasp"] * 3


def test_time_that_is_up_lets_the_episode_finish():
    run, _, _ = play(RunPlan(mode=Mode.SERIAL, seconds=0.12), acting())
    assert len(run.outcomes) == 3
    assert run.summary.seconds >= 0.15


def test_frames_come_at_their_rate():
    _, _, client = play(RunPlan(mode=Mode.SERIAL, episodes=20, frame_hz=50.0), acting())
    assert len(client.pushed) == pytest.approx(60, abs=20)  # 1 s of stub time: 0, 20, 40 ms of each 50 ms


def test_a_plan_needs_an_end():
    with pytest.raises(ValueError, match="episodes or of seconds"):
        RunPlan(mode=Mode.SERIAL)


def test_a_model_of_another_robot_is_rejected():
    def other(talk: Talk) -> None:
        talk.hear()
        schema = opened().schema
        del schema.dimensions[-1]
        answer = pb.Opened(epoch=1, schema=schema, action_tokens=6, mode=pb.MODE_SERIAL, valid_for_ms=100)
        talk.say(opened=answer)
        talk.hear()

    server = Server(other)
    try:
        with pytest.raises(FailedPrecondition, match="gripper"):
            run_robot(server.address, RunPlan(mode=Mode.SERIAL, episodes=1), lambda progress: None, StubWorld())
    finally:
        server.stop()


def test_the_simulated_robot_works_through_a_socket():
    sim = RobotSim(1)

    def expert(talk: Talk) -> None:
        talk.open(valid_for_ms=250)
        while (message := talk.hear()) is not None:
            if message.HasField("reset"):
                talk.epoch += 1
            elif message.HasField("frame"):
                talk.act(message.frame, expert_action(sim.pose(), sim.grasps()[sim.task.target]))

    server, seen = Server(expert), []
    try:
        run = run_robot(server.address, RunPlan(mode=Mode.SERIAL, episodes=3, seed=1), seen.append, sim)
    finally:
        server.stop()
        sim.close()
    assert run.outcomes == (EpisodeOutcome.SUCCESS,) * 3
    assert run.model == "scripted"
    assert run.summary.actions > 20
    assert run.statistics.rejected == 0
    assert 1 <= len(run.snapshots) <= 8
    assert run.snapshots[0].image.shape == (96, 96, 3)
    assert seen[-1].successes == 3
    assert [progress.episodes for progress in seen] == sorted(progress.episodes for progress in seen)
