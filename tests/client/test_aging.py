"""Settings for the age of actions, and the targets that follow from them."""

import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.actions import Action, Directive, resolve
from edgeflow_client.aging import LOOK_AHEAD_S, OFF, Aging
from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.bounds import check_schema
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.pose import Pose, from_rotvec, identity
from edgeflow_client.session import ClientSession
from edgeflow_client.types import ActionSchema, Command, StageTimings
from tests.client.scripted import NAMES, answer_all, opened, session_settings

MS = 1_000_000
LOOK = Aging(look_ahead_s=0.05, control_rate_hz=20.0)


def schema(
    rate_hz: float = 0.0, rotation: str = "euler_xyz", relative: bool = True, whole_way: bool = False
) -> ActionSchema:
    return ActionSchema(
        names=NAMES,
        units=("1",) * 7,
        low=(-1.0,) * 7,
        high=(1.0,) * 7,
        relative=(relative,) * 6 + (False,),
        rotation=rotation,
        control_rate_hz=rate_hz,
        whole_way=whole_way,
    )


def action(aging: Aging, age_ms: float = 100.0, values=(0.1, 0, 0, 0, 0, 0.2, 1), **changed) -> Action:
    fields = {
        "seq": 1,
        "epoch": 1,
        "values": np.array(values, dtype=np.float64),
        "token_ids": (),
        "schema": schema(),
        "stamp_ns": 1000 * MS,
        "received_ns": 1000 * MS + round(age_ms * MS),
        "valid_until_ns": 2000 * MS,
        "frame_pose": identity(),
        "timings": StageTimings(),
        "server_ns": 0,
        "aging": aging,
    }
    return Action(**(fields | changed))


@pytest.mark.parametrize("name", ["look_ahead_s", "slow_from_s", "command_lead_s", "camera_offset_s"])
@pytest.mark.parametrize("value", [-0.001, 10.001, math.nan, math.inf, "0.1"])
def test_a_time_that_makes_no_sense_is_rejected_with_the_range(name, value):
    with pytest.raises(InvalidArgument, match=rf"aging\.{name}: must be 0 to 10 s"):
        Aging(**{name: value})


@pytest.mark.parametrize("value", [-1.0, 10_001.0, math.nan, math.inf])
def test_a_control_rate_that_makes_no_sense_is_rejected_with_the_range(value):
    with pytest.raises(InvalidArgument, match=r"aging\.control_rate_hz: must be 0 to 10000 Hz"):
        Aging(control_rate_hz=value)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_an_invalid_control_rate_makes_no_schema(value):
    with pytest.raises(ValueError, match="control_rate_hz is a rate or 0"):
        schema(rate_hz=value)


def test_a_stated_control_rate_that_makes_no_sense_is_rejected():
    with pytest.raises(FailedPrecondition, match="control rate"):
        check_schema(schema(rate_hz=10_001.0))
    check_schema(schema(rate_hz=20.0))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=7, max_size=7),
    st.floats(0, 500),
    st.sampled_from(["rotvec", "euler_xyz"]),
    st.sampled_from([Aging(), OFF, Aging(look_ahead_s=0.0, control_rate_hz=20.0), Aging(camera_offset_s=0.1)]),
)
def test_without_look_ahead_targets_are_bit_for_bit_those_of_the_action(values, age_ms, rotation, aging):
    agreed = schema(rotation=rotation)
    anchor = Pose(np.array([0.3, -0.2, 0.1]), wxyz=from_rotvec(np.array([0.1, 0.2, -0.3])))
    target = action(aging, age_ms, values, schema=agreed, frame_pose=anchor).target()
    expected = resolve(agreed, np.array(values), anchor)
    assert target.pose.position.tobytes() == expected.pose.position.tobytes()
    assert target.pose.wxyz.tobytes() == expected.pose.wxyz.tobytes()
    assert target.values == expected.values
    assert (target.factor, target.look_ahead_s, target.speed) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("aging", "agreed", "factor"),
    [
        (Aging(), schema(20.0), 1.0 + 20.0 * LOOK_AHEAD_S),
        (Aging(command_lead_s=0.02), schema(20.0), 1.0 + 20.0 * LOOK_AHEAD_S),
        (Aging(control_rate_hz=10.0), schema(), 1.0 + 10.0 * LOOK_AHEAD_S),
        (Aging(), schema(), 1.0),
        (Aging(), schema(whole_way=True), 1.0),
        (Aging(control_rate_hz=10.0), schema(whole_way=True), 1.0),
        (OFF, schema(20.0), 1.0),
        (Aging(), schema(20.0, relative=False), 1.0),
    ],
)
def test_one_step_displacements_look_ahead_by_default(aging, agreed, factor):
    assert action(aging, 400.0, schema=agreed).target().factor == pytest.approx(factor)


def test_an_action_is_one_step_or_the_whole_way():
    with pytest.raises(ValueError, match="whole_way and a control_rate_hz; an action is one or the other"):
        schema(20.0, whole_way=True)


@pytest.mark.parametrize(
    ("aging", "stated", "warned"),
    [
        (Aging(camera_offset_s=0.01), {}, True),
        (Aging(), {"control_rate_hz": 20.0}, False),
        (Aging(), {"whole_way": True}, False),
        (Aging(), {"horizon": 2, "step_ms": 50.0}, False),
        (Aging(control_rate_hz=20.0), {}, False),
        (OFF, {}, False),
    ],
)
def test_a_policy_without_a_rate_is_logged_once(aging, stated, warned, caplog):
    session = ClientSession(session_settings(), "grasp", ManualClock(MS), 0, aging)
    with caplog.at_level(logging.WARNING, "edgeflow_client"):
        for _ in range(3):
            session.stream_opened(opened(**stated), None)
    assert ["aging=Aging(control_rate_hz=...)" in each for each in caplog.messages] == [True] * warned


@pytest.mark.parametrize(("age_ms", "factor"), [(0, 1.0), (25, 1.5), (50, 2.0), (400, 2.0)])
def test_a_target_looks_ahead_by_the_age_and_no_further_than_permitted(age_ms, factor):
    target = action(LOOK, age_ms).target()
    assert target.factor == pytest.approx(factor)
    assert target.look_ahead_s == pytest.approx((factor - 1.0) / 20.0)
    assert target.age_s == pytest.approx(age_ms / 1000)
    np.testing.assert_allclose(target.pose.position, [0.1 * factor, 0, 0])
    np.testing.assert_allclose(target.pose.wxyz, from_rotvec(np.array([0, 0, 0.2 * factor])))
    assert target.values == {"gripper": 1.0}


def test_the_command_lead_is_a_part_of_the_age():
    aging = Aging(look_ahead_s=1.0, control_rate_hz=20.0, command_lead_s=0.05, slow_from_s=0.075)
    target = action(aging, 100).target()
    assert target.age_s == pytest.approx(0.15)
    assert target.factor == pytest.approx(4.0)
    assert target.speed == pytest.approx(0.5)


def test_the_age_is_that_at_the_command_where_its_time_is_given():
    late = action(LOOK, 10).target(now_ns=1030 * MS)
    assert late.age_s == pytest.approx(0.03) and late.factor == pytest.approx(1.6)
    assert action(LOOK, 10).target(now_ns=900 * MS).age_s == 0.0


def test_there_is_no_look_ahead_from_a_present_pose():
    target = action(LOOK, 100).target(identity())
    assert (target.factor, target.look_ahead_s) == (1.0, 0.0)
    np.testing.assert_allclose(target.pose.position, [0.1, 0, 0])


def test_absolute_actions_have_an_age_and_no_look_ahead():
    aging = Aging(look_ahead_s=0.05, control_rate_hz=20.0, slow_from_s=0.05)
    target = action(aging, 100, schema=schema(relative=False), frame_pose=None).target()
    assert target.pose is None and target.factor == 1.0
    assert (target.age_s, target.speed) == (0.1, 0.5)


def test_the_schema_limits_the_look_ahead_and_the_target_says_so():
    target = action(LOOK, 50, (0.8, 0, 0, 0, 0, 0, 0)).target()
    assert target.factor == pytest.approx(1.25)
    assert target.look_ahead_s == pytest.approx(0.0125)
    assert target.pose.position[0] == pytest.approx(1.0)


def test_a_configured_control_rate_comes_before_the_stated_one():
    look = Aging(look_ahead_s=0.05)
    assert action(look, 100, schema=schema(rate_hz=40.0)).target().factor == pytest.approx(3.0)
    assert action(LOOK, 100, schema=schema(rate_hz=40.0)).target().factor == pytest.approx(2.0)
    with pytest.raises(FailedPrecondition, match="control_rate_hz"):
        action(look, 100).target()


@given(st.floats(0.001, 1.0), st.tuples(st.floats(0, 10), st.floats(0, 10)))
def test_speed_never_rises_with_age(slow_from_s, ages):
    aging = Aging(slow_from_s=slow_from_s)
    younger, older = (aging.speed(age) for age in sorted(ages))
    assert 0.0 < older <= younger <= 1.0
    assert aging.speed(slow_from_s) == 1.0
    assert Aging().speed(max(ages)) == 1.0


def test_how_the_action_was_verified_is_on_its_target():
    verified = action(OFF, settled=5, tolerance_bins=1, max_passes=2)
    target = Directive(Command.ACT, action=verified).tool
    assert (target.settled, target.tolerance_bins, target.max_passes) == (5, 1, 2)


def test_a_look_ahead_without_a_control_rate_is_rejected_at_open(serve, connect):
    client = connect(serve(answer_all), aging=Aging(look_ahead_s=0.05))
    with pytest.raises(FailedPrecondition, match=r"aging\.control_rate_hz: is not set"), client:
        raise AssertionError("must not be entered")


def test_a_rejected_open_leaves_the_session_closed():
    clock = ManualClock(MS)
    session = ClientSession(session_settings(), "grasp", clock, 0, Aging(look_ahead_s=0.05))
    with pytest.raises(FailedPrecondition):
        session.stream_opened(opened(), None)
    assert session.opened is None


def test_a_robot_looks_ahead_from_when_its_camera_saw(serve, connect, eventually):
    """The clock stands still, so the age at receipt is the camera's offset alone."""
    clock = ManualClock(1000 * MS)
    aging = Aging(control_rate_hz=20.0, camera_offset_s=0.025, command_lead_s=0.01)
    image = np.zeros((6, 8, 3), np.uint8)
    with connect(serve(answer_all), clock=clock, aging=aging) as client:
        client.push(image, identity())
        eventually(lambda: client.latest().command is Command.ACT)
        directive = client.latest()
        assert directive.action.age_ns == 25 * MS
        assert directive.tool.age_s == pytest.approx(0.035)
        assert directive.tool.factor == pytest.approx(1.7)
        assert directive.tool.pose.position[0] == pytest.approx(0.017)
        client.push(image, identity(), captured_ns=clock.now_ns() - 5 * MS)
        eventually(lambda: client.latest().action is not None and client.latest().action.seq == 2)
        assert client.latest().action.age_ns == 5 * MS


def test_a_camera_offset_beyond_the_start_of_the_clock_is_cut(serve, connect, eventually):
    with connect(serve(answer_all), clock=ManualClock(MS), aging=Aging(camera_offset_s=1.0)) as client:
        client.push(np.zeros((6, 8, 3), np.uint8), identity())
        eventually(lambda: client.latest().command is Command.ACT)
        assert client.latest().action.stamp_ns == 0
