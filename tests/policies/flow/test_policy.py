"""Observations to frames and latent actions to actions, for all three families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeflow.contract import PROMPT, Image, Stage, StageProgram
from edgeflow.engine.flow.frames import RTCSettings, Schedule
from edgeflow.policies.flow.policy import DenoisingPolicy
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from tests.policies.flow.tiny import (
    ACTION,
    KINDS,
    STATE,
    TOP,
    WRIST,
    ids_of,
    statistics_of,
    write_checkpoint,
    write_json,
)
from tests.policies.flow.tiny_policies import loaded, observation
from tests.policies.flow.weights import Tiny

LIMITS = {"action_low": [-1.0, -2.0, 0.0], "action_high": [1.0, 2.0, 1.0]}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DenoisingPolicy]:
    """Of each family, π0.5 with quantiles as it is published."""
    norms = {"pi05": "QUANTILES"}
    return {
        kind: loaded(
            write_checkpoint(
                tmp_path_factory.mktemp(kind), Tiny(kind=kind), norm=norms.get(kind, "MEAN_STD"), n_action_steps=4
            ),
            candidates=3,
        )
        for kind in KINDS
    }


@pytest.mark.parametrize(("kind", "lead"), [("smolvla", 0), ("pi0", 1), ("pi05", 0)])
def test_an_answer_is_a_prefix_and_steps_of_all_candidates(policies: dict[str, DenoisingPolicy], kind: str, lead: int):
    steps = Stage(rows=3 * (6 + lead), repeats=3, group=1, advances=False)
    assert policies[kind].program() == StageProgram((Stage(rows=PROMPT), steps))
    assert [each.name for each in policies[kind].inputs.cameras] == [TOP, WRIST]
    assert policies[kind].inputs.numbers == 3


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_rows_are_those_of_what_is_there(policies: dict[str, DenoisingPolicy], kind: str):
    policy, seen = policies[kind], observation(1)
    rows = policy.text_rows("lift it", seen.state)
    assert policy.network.prefix_rows(2, rows) == policy.fixed_rows + rows
    one = policy.prepare(observation(1, WRIST, state=seen.state))
    assert (len(one.pixel_values), len(one.prompt_ids)) == (1, rows)
    assert policy.network.prefix_rows(1, rows) == policy.fixed_rows + rows - Tiny(kind=kind).image_rows


def test_texts(policies: dict[str, DenoisingPolicy]):
    seen = observation(1, instruction=" Lift_it\nnow ")
    for kind, bos in (("smolvla", False), ("pi0", True)):
        assert policies[kind].prepare(seen).prompt_ids == ids_of(" Lift_it\nnow \n", bos=bos)
    ended = observation(1, instruction="lift it\n")
    assert policies["pi0"].prepare(ended).prompt_ids == ids_of("lift it\n", bos=True)
    low, high = -1.0, 3.0  # the quantiles of the first number, which become -1 and 1
    states = {"0 127 255": (low, 1.9999, 9.0), "-1 0 255": (low - 0.1, -2.0, 1e9), "64 128 128": (0.0, 2.0, 3.0)}
    for numbers, state in states.items():
        text = f"Task: Lift it now, State: {numbers};\nAction: "
        assert policies["pi05"].prepare(replace(seen, state={STATE: state})).prompt_ids == ids_of(text, bos=True)
        assert policies["pi05"].text_rows(seen.instruction, {STATE: state}) == len(text) + 1
    assert high > low


def test_a_text_is_cut_where_training_cut_it(policies: dict[str, DenoisingPolicy]):
    for kind in KINDS:
        assert policies[kind].text_rows("x" * 200) == 64
        assert len(policies[kind].prepare(observation(1, instruction="x" * 200)).prompt_ids) == 64


def test_without_a_state_the_longest_prompt_counts(policies: dict[str, DenoisingPolicy]):
    policy = policies["pi05"]
    assert policy.text_rows("lift") == len("Task: lift, State: 100 100 100;\nAction: ") + 1
    assert policies["pi0"].text_rows("lift") == policies["pi0"].text_rows("lift", observation(1).state) == 6


def test_states_beyond_a_range_are_counted(policies: dict[str, DenoisingPolicy]):
    within, beyond = {STATE: (0.0, 0.0, 0.0)}, {STATE: (0.0, -2.1, 0.0)}
    for kind, counted in (("pi05", 1), ("pi0", 0)):
        policy = policies[kind]
        before = policy.unusual_states
        for state in (within, beyond, within):
            policy.text_rows("lift", state)
            policy.prepare(observation(1, state=state))
        assert policy.unusual_states - before == counted


def test_noise_follows_from_seed_and_stamp(tmp_path: Path):
    directory = write_checkpoint(tmp_path, Tiny(kind="smolvla"))
    one, two, other = (loaded(directory, **each) for each in ({}, {"candidates": 2}, {"noise_seed": 1}))
    stamps = [one.prepare(observation(1, stamp_ns=stamp)).noise for stamp in (5, 5, 6, -5)]
    assert torch.equal(stamps[0], stamps[1])
    assert len({each.sum().item() for each in stamps}) == 3
    assert not torch.equal(stamps[0], other.prepare(observation(1, stamp_ns=5)).noise)
    assert torch.equal(two.prepare(observation(1, stamp_ns=5)).noise[:1], stamps[0])
    many = torch.cat([one.prepare(observation(1, stamp_ns=stamp)).noise for stamp in range(200)])
    assert abs(many.mean().item()) < 0.05
    assert abs(many.std().item() - 1) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_actions_in_the_units_of_the_training(policies: dict[str, DenoisingPolicy], kind: str):
    values = np.random.default_rng(0).normal(size=(6, 5))
    made = statistics_of(Tiny(kind=kind))
    mean, std, low, high = (made[f"{ACTION}.{each}"].double().numpy() for each in ("mean", "std", "q01", "q99"))
    kept = values[:4, :3]
    wanted = (kept + 1) / 2 * (high - low) + low if kind == "pi05" else kept * std + mean
    np.testing.assert_allclose(policies[kind].actions(values), wanted, rtol=1e-6)
    schema = policies[kind].action_schema()
    assert (schema.horizon, schema.step_ms, schema.names) == (4, 50.0, ("a0", "a1", "a2"))


def test_observations_without_a_needed_input_are_rejected(policies: dict[str, DenoisingPolicy]):
    policy = policies["pi0"]
    with pytest.raises(InvalidArgument, match=f"has none of {TOP}, {WRIST}; send at least one"):
        policy.prepare(observation(1, images={"other": Image(1, 1, bytes(3))}))
    with pytest.raises(InvalidArgument, match=f"{STATE} has 2 numbers; the policy takes 3"):
        policy.prepare(observation(1, state={STATE: (0.0, 1.0)}))
    with pytest.raises(CheckpointError, match="unnorm_key: 'other' is not one of action"):
        policy.action_schema("other")


def test_settings_make_the_schema(tmp_path: Path):
    """edgeflow.json has defaults, of which the configuration wins."""
    directory = write_checkpoint(tmp_path, Tiny(kind="smolvla"))
    stated = {"control_rate_hz": 10, "frame": "tool", "rotation": "rotvec", "action_relative": [True, True, False]}
    write_json(directory / "edgeflow.json", {**stated, "action_names": ["x", "y", "grip"], **LIMITS})
    policy = loaded(directory, action_units=["m", "m", "1"], absent_cameras=[WRIST], steps=2, rtc={"schedule": "EXP"})
    schema = policy.action_schema()
    assert (schema.names, schema.units, schema.control_rate_hz) == (("x", "y", "grip"), ("m", "m", "1"), 20.0)
    assert (schema.frame, schema.rotation, schema.relative) == ("tool", "rotvec", (True, True, False))
    assert (list(schema.low), list(schema.high)) == (LIMITS["action_low"], LIMITS["action_high"])
    assert [each.name for each in policy.inputs.cameras] == [TOP]
    assert policy.fixed_rows == 4 + 1
    assert policy.sizes.steps == 2
    assert policy.rtc == RTCSettings(schedule=Schedule.EXP, execution_horizon=6)


def test_trained_chunking_takes_the_delay_of_the_training(tmp_path: Path):
    directory = write_checkpoint(tmp_path, Tiny(kind="pi05"), rtc_training_max_delay=4)
    policy = loaded(directory, rtc={"mode": "trained", "execution_horizon": 5})
    assert policy.rtc == RTCSettings(execution_horizon=5, trained_max_delay=4)
    policy = loaded(directory, rtc={"mode": "trained", "trained_max_delay": 3})
    assert policy.rtc == RTCSettings(execution_horizon=6, trained_max_delay=3)
    with pytest.raises(ConfigError, match="trained_max_delay: 5 must be 1 to 4"):
        loaded(directory, rtc={"mode": "trained", "trained_max_delay": 5})


def test_a_delay_that_the_checkpoint_does_not_state_may_be_configured(tmp_path: Path):
    policy = loaded(write_checkpoint(tmp_path, Tiny(kind="smolvla")), rtc={"mode": "trained", "trained_max_delay": 2})
    assert policy.rtc == RTCSettings(execution_horizon=6, trained_max_delay=2)
