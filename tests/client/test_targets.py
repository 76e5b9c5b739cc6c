"""No push, pose or answer, however wrong, leads to a target that is not finite or that nobody's pose anchors."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgeflow_client.actions import Directive
from edgeflow_client.aging import Aging
from edgeflow_client.blending import Latest, TemporalEnsemble, Weighted
from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.pose import LONGEST_M, Pose, from_rotvec
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.types import Command
from tests.client.scripted import NAMES, opened, session_settings

MS = 1_000_000
PUSHES = 50  # of an example: 100,000 with the examples of the night
STEP_MS = 20.0
LARGEST = np.finfo(np.float64).max
POLICIES = {
    "tool": (True,) * 6 + (False,),
    "joints": (False,) * 7,
    "gripper moves": (True,) * 7,
    "mixed": (True, False) * 3 + (True,),
}
AGINGS = [Aging(), Aging(look_ahead_s=10.0, control_rate_hz=10_000.0), Aging(slow_from_s=0.01, command_lead_s=10.0)]


class Wild:
    """Numbers, poses and answers of every kind."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def numbers(self, count: int) -> np.ndarray:
        """Mostly plausible ones; now and then some of any size, or none."""
        values = self.random.uniform(-1, 1, count)
        if self.chance(0.3):
            some = self.random.integers(count, size=3)
            values[some] *= 10.0 ** self.random.choice([-300, -12, 1, 2, 3, 150, 300, 308])
        if self.chance(0.1):
            values[self.random.integers(count)] = self.random.choice([np.nan, np.inf, -np.inf, LARGEST, -LARGEST])
        return values

    def pose(self) -> Pose | None:
        """None, or a pose; InvalidArgument where what was given is none."""
        if self.chance(0.1):
            return None
        turn = from_rotvec(self.random.normal(size=3))
        kind = self.random.integers(10)
        wrong = {
            0: lambda: Pose(self.numbers(3), wxyz=turn),
            1: lambda: Pose(self.random.normal(size=3), wxyz=self.numbers(4)),
            2: lambda: Pose(self.random.normal(size=3), xyzw=turn * self.random.choice([0.0, 0.9992, 1.0008, 1.01])),
            3: lambda: Pose(self.random.uniform(-1000, 1000, 3), wxyz=turn),
            4: lambda: Pose.from_rpy(self.random.normal(size=3), self.numbers(3)),
            5: lambda: Pose.from_matrix(self.numbers(16).reshape(4, 4)),
            6: lambda: Pose(self.random.normal(size=3), turn),
        }
        return wrong.get(kind, lambda: Pose(self.random.normal(size=3).tolist(), wxyz=turn))()


def session_of(
    policy: str, limit: float, frame: str, rotation: str, horizon: int, aging: Aging, blending, far_m: float
):
    """An open session, and its stream."""
    clock = ManualClock(1000 * MS)
    session = ClientSession(
        session_settings(), "grasp", clock, 2000 * MS, aging=aging, blending=blending, max_distance_m=far_m
    )
    answer = opened(500, horizon=horizon, step_ms=STEP_MS if horizon > 1 else 0.0)
    answer.schema.frame, answer.schema.rotation = frame, rotation
    for dimension, relative in zip(answer.schema.dimensions, POLICIES[policy], strict=True):
        dimension.low, dimension.high, dimension.relative = -limit, limit, relative
    stream = OutgoingMessages(session.opening())
    next(stream)
    session.stream_opened(answer, stream)
    return session, stream, clock


def check(directive: Directive, given_pose: bool, wild: Wild) -> int:
    """The targets of a directive are finite; how many it had."""
    tool, joints, action = directive.tool, directive.joints, directive.action
    if directive.command is not Command.ACT:
        assert tool is None and joints is None
        return 0
    assert tool is None or (given_pose and tool.pose.finite and np.isfinite(list(tool.values.values())).all())
    assert tool is None or all(math.isfinite(each) for each in (tool.speed, tool.age_s, tool.factor))
    assert joints is None or (not any(action.schema.relative) and np.isfinite(joints).all())
    try:
        present = wild.pose()
        if present is not None:
            target = action.target(present)
            assert target.pose is None or target.pose.finite
    except (InvalidArgument, FailedPrecondition):
        pass
    return (tool is not None) + (joints is not None)


def play(wild: Wild, session: ClientSession, stream: OutgoingMessages, clock: ManualClock, horizon: int) -> int:
    """PUSHES pushes, and what the service may answer; the number of targets seen."""
    posed: dict[int, bool] = {}
    targets = 0
    for _ in range(PUSHES):
        clock.advance_ns(int(wild.random.integers(1, 60)) * MS)
        if session.directive().needs_reset:
            session.reset("")
        try:
            pose = wild.pose()
            seq = session.push([b""], (), pose, "", clock.now_ns())
        except InvalidArgument:
            continue
        posed[seq] = pose is not None
        sent = next(message.frame for message in iter(lambda: next(stream), None) if message.HasField("frame"))
        rows = wild.numbers(horizon * len(NAMES))
        answer = pb.Action(epoch=1, seq=sent.seq, stamp_ns=sent.stamp_ns, command=pb.COMMAND_ACT, valid_for_ms=500)
        answer.values.extend(rows)
        answer.horizon, answer.step_ms = horizon, STEP_MS if horizon > 1 else 0.0
        answer.epoch = session.opened.epoch + (0 if wild.chance(0.9) else 1)
        session.stream_message(pb.ServerMessage(action=answer))
        for _ in range(2):
            clock.advance_ns(int(wild.random.integers(0, 30)) * MS)
            directive = session.directive()
            targets += check(directive, directive.action is not None and posed[directive.action.seq], wild)
    return targets


@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from([*POLICIES]),
    limit=st.sampled_from([1.0, 1e308, math.inf]),
    frame=st.sampled_from(["tool", "base"]),
    rotation=st.sampled_from(["rotvec", "euler_xyz"]),
    horizon=st.sampled_from([1, 4]),
    aging=st.sampled_from(AGINGS),
    blending=st.sampled_from([Latest(), Weighted(), TemporalEnsemble()]),
    far_m=st.sampled_from([1.0, 100.0, LONGEST_M]),
)
def test_no_target_is_other_than_finite(seed, **settings):
    session, stream, clock = session_of(**settings)
    play(Wild(seed), session, stream, clock, settings["horizon"])


def test_the_pushes_of_the_property_lead_to_targets():
    """Otherwise it would hold of nothing."""
    plain = {"limit": math.inf, "frame": "tool", "rotation": "rotvec", "horizon": 4, "aging": AGINGS[0]}
    for policy in ("tool", "joints"):
        session, stream, clock = session_of(policy=policy, blending=Latest(), far_m=100.0, **plain)
        assert play(Wild(0), session, stream, clock, 4) > PUSHES / 4, policy
