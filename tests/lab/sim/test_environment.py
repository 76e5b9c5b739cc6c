"""Observations and actions of an environment by a policy's names."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from edgeflow.lab.sim.environment import GymRobot, part_of
from edgeflow.lab.sim.names import KNOWN, NameMap, names_of
from edgeflow_client.errors import ConfigError
from tests.lab.sim.follow import ENV, LIMIT, Follow

DONE = {"success": "task/done"}


def robot(arguments: dict[str, Any] | None = None, **names: Any) -> GymRobot:
    return GymRobot(ENV, NameMap.model_validate({**DONE, **names}), arguments or {})


def executed(robot: GymRobot, *actions: float | None) -> list[float]:
    """What the environment gets for actions."""
    for action in actions:
        robot.step(None if action is None else np.array([action]))
    assert isinstance(robot.env, Follow)
    return robot.env.actions


def test_parts_are_joined_and_cut_and_pictures_turned():
    found = robot(
        {"render_mode": "rgb_array"},
        cameras={"top": "pixels/top", "turned": "pixels/top", "shown": "render()"},
        upside_down=["turned"],
        state={"one": "arm/position", "all": ["arm/parts[:2]", "arm/position"], "last": "arm/parts[2:]"},
    ).reset(seed=3)
    position = found.raw["arm"]["position"][0]
    assert {name: vector.tolist() for name, vector in found.state.items()} == {
        "one": [position],
        "all": [1.0, 2.0, position],
        "last": [position],
    }
    assert found.images["top"][0, 0].tolist() == found.images["turned"][-1, -1].tolist() == [255, 255, 255]
    assert found.images["shown"].shape == (32, 32, 3)


def test_an_action_is_taken_scaled_and_moved():
    values = np.array([1.0, 2.0, 3.0])
    assert robot(take=[2, 0], scale=[2.0, 10.0], offset=1.0).action_of(values).tolist() == [7.0, 11.0]


@pytest.mark.parametrize(
    ("hold", "kept"),
    [
        ([], [0.0, 5.0, 5.0, 5.0]),  # the last action
        ([None], [0.0, 5.0, 5.0, 5.0]),
        ([2.0], [2.0, 5.0, 2.0, 2.0]),
    ],
)
def test_a_hold_keeps_the_numbers_that_the_names_say(hold: list[float | None], kept: list[float]):
    held = robot(hold=hold)
    held.reset(seed=0)
    assert executed(held, None, 5.0, None, None) == kept


def test_a_hold_keeps_the_vector_that_was_there_when_it_began():
    held = robot(hold="arm/position")
    start = held.reset(seed=0).raw["arm"]["position"][0]
    assert executed(held, None, None, 5.0, None, None) == [start, start, 5.0, start + 3, start + 3]


def test_an_episode_ends_at_its_limit_and_simulated_time_counts_steps():
    ran = robot()
    frame = ran.reset(seed=0)
    for _ in range(LIMIT):
        step = ran.step(np.array([-1.0]))
    assert step.over and not step.success and frame.seconds == 0.0
    assert step.frame.seconds == LIMIT / ran.rate_hz == 2.0


def test_a_seed_repeats_an_episode_and_its_random_actions():
    ran, seen = robot(), []
    for seed in (4, 4, 5):
        frame = ran.reset(seed)
        seen.append((frame.raw["arm"]["position"][0], *(ran.random_action()[0] for _ in range(3))))
    assert seen[0] == seen[1] != seen[2]


def test_a_path_may_be_a_whole_vector():
    assert part_of(np.arange(5), "[1:3]").tolist() == [1, 2]
    for path in ("a", "a[:1]", "[x:]"):
        with pytest.raises((LookupError, ValueError)):
            part_of(np.arange(5), path)


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry.pattern)
def test_known_names_are_valid_and_name_inputs(entry):
    names = names_of(entry.pattern.replace("*", "Any"))
    assert names.cameras and names.state and names.hold
    assert set(names.upside_down) <= set(names.cameras)


def test_a_file_replaces_known_names_key_by_key(tmp_path):
    file = tmp_path / "names.json"
    file.write_text('{"instruction": "push"}')
    names = names_of("gym_pusht/PushT-v0", file)
    assert names.instruction == "push" and names.cameras == {"observation.image": "pixels"}
    for text, message in (("[]", "must hold a JSON object"), ("{", "cannot be read: it is not JSON")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            names_of("gym_pusht/PushT-v0", file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        names_of("gym_pusht/PushT-v0", tmp_path / "none.json")


def test_libero_says_how_to_set_it_up_in_place_of_asking(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="LIBERO is not set up"):
        gymnasium.make("edgeflow.lab.sim.libero:libero/libero_goal")
