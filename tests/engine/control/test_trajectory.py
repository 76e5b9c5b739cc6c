"""The trajectory contract: limits are kept and nothing else is changed; the best candidate is sent."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import PolicyInputs
from edgeflow.engine.control.continuity import ExecutedRows
from edgeflow.engine.control.trajectory import Trajectory
from edgeflow_client.errors import ConfigError
from edgeflow_client.trajectory import LimitKind
from edgeflow_client.types import ActionSchema, StateSpec

STEP_MS, HORIZON = 20.0, 24
STEP_S = STEP_MS / 1e3
INPUTS = PolicyInputs(cameras=(), state=(StateSpec(name="tool", size=2), StateSpec(name="joints", size=3)))
VELOCITY, ACCELERATION, JERK, LOW, HIGH = 1.5, 20.0, 700.0, -0.2, 0.3
LIMITS = {"velocity": VELOCITY, "acceleration": ACCELERATION, "jerk": JERK, "low": LOW, "high": HIGH}
FREE = {"free_start": True}


def schema(*, relative: bool = False, frame: str = "base", horizon: int = HORIZON) -> ActionSchema:
    return ActionSchema(
        names=("x", "roll", "grip"),
        units=("m", "rad", "1"),
        low=(-math.inf,) * 3,
        high=(math.inf,) * 3,
        relative=(relative, relative, False),
        frame=frame,
        horizon=horizon,
        step_ms=STEP_MS if horizon > 1 else 0.0,
    )


def trajectory(limits: dict[str, object], *, relative: bool = False, name: str = "x", **changed: object) -> Trajectory:
    config = TrajectoryConfig.model_validate({"limits": {name: limits}})
    return Trajectory(config, schema(relative=relative, **changed), INPUTS)


def chunk(column: object) -> np.ndarray:
    rows = np.zeros((HORIZON, 3))
    rows[:, 0] = column
    rows[:, 1:] = np.random.default_rng(1).normal(size=(HORIZON, 2))
    return rows


def worst(column: np.ndarray, order: int, fresh: int) -> float:
    """The largest difference of an order, per second, that ends in one of the last `fresh` rows."""
    differences = np.diff(column, n=order)[-fresh:]
    return float(np.abs(differences).max(initial=0.0)) / STEP_S**order


def keeps(column: np.ndarray, fresh: int) -> bool:
    pairs = ((1, VELOCITY), (2, ACCELERATION), (3, JERK))
    moves = all(worst(column, order, fresh) <= limit * (1 + 1e-6) for order, limit in pairs)
    return moves and column[-fresh:].min() >= LOW - 1e-12 and column[-fresh:].max() <= HIGH + 1e-12


columns = st.one_of(
    st.lists(st.floats(-1, 1), min_size=HORIZON, max_size=HORIZON),
    st.tuples(st.floats(0, 1), st.floats(0.01, 3), st.floats(0, 6)).map(
        lambda wave: [wave[0] * math.sin(wave[1] * row + wave[2]) for row in range(HORIZON)]
    ),
)


@settings(max_examples=60, deadline=None)
@given(first=columns, second=columns, row=st.integers(1, HORIZON - 8), delay=st.integers(1, 8))
def test_consecutive_chunks_keep_the_limits_and_limiting_is_idempotent(first, second, row, delay):
    """Also where the robot changes from one to the other before the delay is over."""
    contract = trajectory(LIMITS | FREE)
    sent, limited = contract.within_limits(chunk(first), None)
    assert keeps(sent[:, 0], HORIZON)
    plan = ExecutedRows(seq=1, delay=delay, actions=sent[row:], before=sent[max(row - 3, 0) : row])
    for wanted, before in ((chunk(first), None), (chunk(second), plan)):
        found, limited = contract.within_limits(wanted, before)
        again, nothing = contract.within_limits(found, before)
        assert again is found and nothing == ()
        assert (found is wanted) == (not limited)
        np.testing.assert_array_equal(found[:, 1:], wanted[:, 1:])
        assert all(each.dimension == "x" and each.beyond >= 0 and each.changed >= 0 for each in limited)
    for change in range(delay + 1):
        line = np.concatenate([sent[: row + change, 0], found[change:, 0]])
        assert keeps(line, HORIZON - change)


@settings(max_examples=60, deadline=None)
@given(wanted=columns, pose=st.floats(LOW, HIGH))
def test_displacements_keep_the_limits_and_their_sum_the_workspace(wanted, pose):
    contract = trajectory(LIMITS | {"state": "tool[1]"}, relative=True)
    found, _ = contract.within_limits(chunk(wanted) / 10, None, [9.0, pose, 0.0, 0.0, 0.0])
    assert keeps(pose + np.concatenate([[0.0], np.cumsum(found[:, 0])]), HORIZON)
    again, nothing = contract.within_limits(found, None, [9.0, pose, 0.0, 0.0, 0.0])
    assert again is found and nothing == ()


def test_limited_motions_are_reported_in_the_units_of_the_limit():
    column = np.zeros(HORIZON)
    column[10:] = 0.5
    found, limited = trajectory({"velocity": 5.0} | FREE).within_limits(chunk(column), None)
    (only,) = limited
    assert (only.dimension, only.limit) == ("x", LimitKind.VELOCITY)
    assert only.beyond == pytest.approx(0.5 / STEP_S - 5.0) and only.changed == pytest.approx(0.4)
    np.testing.assert_allclose(found[8:16, 0], [0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5], atol=1e-12)


def test_a_workspace_without_other_limits_needs_no_start():
    wanted = chunk(np.linspace(0.9, 0.0, HORIZON))
    assert trajectory({"high": 0.5}).within_limits(wanted, None)[0][0, 0] == 0.5
    assert trajectory({"high": 0.5, "velocity": 1.0} | FREE).within_limits(wanted, None)[0][0, 0] == 0.5


def test_the_first_chunk_starts_from_the_state_where_that_is_known():
    contract = trajectory({"velocity": 5.0, "state": "joints[0]"})
    found, limited = contract.within_limits(chunk(0.5), None, [0.0, 0.0, 0.3, 0.0, 0.0])
    np.testing.assert_allclose(found[:3, 0], [0.4, 0.5, 0.5])
    assert [each.limit for each in limited] == [LimitKind.VELOCITY]


@pytest.mark.parametrize("relative", [False, True])
def test_a_chunk_that_continues_nothing_starts_from_rest_whenever_it_arrives(relative: bool):
    """The robot plays from the row that is due on, not from the first one."""
    delay, pose, per_step = 4, 0.3, 0.2 * STEP_S
    contract = trajectory({"velocity": 0.2, "acceleration": 5.0, "state": "joints[0]"}, relative=relative)
    wanted = np.full(HORIZON, per_step) if relative else pose + per_step * np.arange(1, HORIZON + 1)
    found, limited = contract.within_limits(chunk(wanted), None, [0.0, 0.0, pose, 0.0, 0.0], delay)
    assert limited
    again, nothing = contract.within_limits(found, None, [0.0, 0.0, pose, 0.0, 0.0], delay)
    assert again is found and nothing == ()
    line = pose + np.cumsum(found[:, 0]) if relative else found[:, 0]
    for arrival in range(delay + 1):
        commands = np.concatenate([[pose] * 3, line[arrival:]])
        assert worst(commands, 1, HORIZON - arrival) <= 0.2 * (1 + 1e-9)
        assert worst(commands, 2, HORIZON - arrival) <= 5.0 * (1 + 1e-9)
    assert line[-1] > pose + per_step


def test_a_chunk_that_is_shorter_than_the_delay_still_moves():
    contract = trajectory({"velocity": 5.0, "state": "joints[0]"})
    found, _ = contract.within_limits(chunk(0.9), None, [0.0, 0.0, 0.3, 0.0, 0.0], 3 * HORIZON)
    np.testing.assert_allclose(found[:, 0], [0.3] * (HORIZON - 1) + [0.4])


def test_a_chunk_that_could_not_be_stopped_is_slowed_down_at_its_end():
    contract = trajectory({"acceleration": 20.0, "high": 1.0} | FREE)
    wanted = chunk(np.linspace(0.0, 1.0, HORIZON))
    found, limited = contract.within_limits(wanted, None)
    assert [(each.limit, each.beyond) for each in limited] == [(LimitKind.BRAKING, 0.0)]
    np.testing.assert_array_equal(found[:15, 0], wanted[:15, 0])
    assert worst(found[:, 0], 2, HORIZON) <= 20.0 * (1 + 1e-9) and found[:, 0].max() <= 1.0


def test_a_motion_that_nothing_continues_is_given_up():
    plan = ExecutedRows(seq=1, delay=1, actions=np.full((4, 3), 3.0), before=np.full((3, 3), 2.0))
    found, limited = trajectory(LIMITS | FREE).within_limits(chunk(0.1), plan)
    assert LimitKind.START in [each.limit for each in limited]
    steps = np.diff(found[:, 0])  # back towards the workspace, no faster than permitted
    assert (steps < 0.0).all() and steps.min() >= steps[-1] - 1e-12


@pytest.mark.parametrize(
    ("limits", "changed", "text"),
    [
        ({"velocity": 1.0}, {"name": "y"}, r"trajectory\.limits\.y: .*x, roll, grip"),
        ({"velocity": 1.0}, {"horizon": 1}, r"trajectory\.limits: .*single actions"),
        ({"low": 0.0}, {"relative": True}, r"trajectory\.limits\.x\.low: .*trajectory\.limits\.x\.state"),
        ({"high": 0.0, "state": "tool[0]"}, {"relative": True, "frame": "tool"}, r"x\.high: .*turns with the tool"),
        ({"high": 0.0, "state": "tool[0]"}, {"relative": True, "name": "roll"}, r"roll\.high"),
        ({"velocity": 1.0}, {}, r"x\.state: x is a position.* keep velocity: set .*x\.free_start to true"),
        ({"acceleration": 1.0, "jerk": 9.0, "low": 0.0}, {}, r"x\.state: .* keep acceleration and jerk: set "),
        ({"velocity": 1.0} | FREE, {"relative": True}, r"x\.free_start: x is a displacement.*: remove it"),
        ({"low": 0.0, "state": "tool[0]"} | FREE, {}, r"x\.free_start: x starts from tool\[0\].*: remove it"),
        ({"velocity": 1.0, "state": "tool[2]"}, {}, r"x\.state: tool has 2 numbers"),
        ({"velocity": 1.0, "state": "arm[0]"}, {}, r"x\.state: .*tool\[0\.\.1\], joints\[0\.\.2\]"),
    ],
)
def test_impossible_limits_are_rejected_with_the_dimension_and_the_limit(limits, changed, text):
    with pytest.raises(ConfigError, match=text):
        trajectory(limits, **changed)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"velocity": 1.0, "acceleration": 0.02}, "acceleration"),
        ({"velocity": 1.0, "acceleration": 2.0, "jerk": 1e-3}, "jerk"),
        ({"velocity": 1.0, "jerk": 1e-3}, "jerk"),
    ],
)
def test_a_workspace_too_small_to_brake_in_is_rejected_with_advice(limits, key):
    limits = limits | FREE
    trajectory(limits)  # without a workspace nothing has to be stopped in time
    with pytest.raises(
        ConfigError, match=rf"trajectory\.limits\.x\.{key}: .* at most 2,000 .* or lower velocity"
    ) as refused:
        trajectory(limits | {"low": -1.0})
    advised = re.search(rf"set {key} to (\S+) or more", str(refused.value))
    assert advised is not None
    trajectory(limits | {"low": -1.0, key: float(advised[1])})


def test_the_candidate_with_the_lowest_score_is_sent():
    plan = ExecutedRows(seq=1, delay=1, actions=np.zeros((8, 3)), before=np.zeros((0, 3)), values=np.zeros((8, 5)))
    smooth, far, rough, broken = (np.full((HORIZON, 3), value) for value in (0.1, 0.5, 0.1, np.nan))
    rough[::2] += 0.4
    chunks = [far, broken, rough, smooth]
    normalised = np.stack([np.pad(each, ((0, 4), (0, 2)), constant_values=7.0) for each in chunks])
    contract = trajectory({"velocity": 5.0} | FREE)
    chosen = contract.choose(4, chunks.__getitem__, normalised, plan)
    assert chosen.index == 3 and chosen.actions is smooth and len(chosen.candidates) == 4
    scores = [each.score for each in chosen.candidates]
    assert scores[3] < scores[0] < scores[1] and scores[3] < scores[2]
    assert chosen.candidates[0].distance == pytest.approx(0.25) and chosen.candidates[3].distance == pytest.approx(0.01)
    assert chosen.candidates[2].roughness > 0.1 and chosen.candidates[2].beyond > 1.0
    alone = contract.choose(1, chunks.__getitem__, normalised[:1], plan)
    assert (alone.index, alone.candidates) == (0, ())
