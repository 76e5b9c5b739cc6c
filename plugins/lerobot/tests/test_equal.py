"""Served answers and LeRobot's own, on checkpoints that LeRobot wrote, in float32."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CAMERAS, TOP, WRIST, PlainLeRobot, write_checkpoint
from robots import LeRobotBench, observation, stamp_ns
from safetensors.numpy import load_file, save_file

from edgeflow.config.service import load_config
from edgeflow.contract import Observation
from edgeflow.lab.conformance.kit import check_policy

EXACT = 1e-5
"""Largest difference, relative to the largest number of an answer."""
CHUNKS = ("diffusion", "vqbet", "act", "smolvla")
NATIVE = ("act", "smolvla")
RANDOM = ("diffusion", "vqbet", "smolvla")
ROBOTS = (1, 2, 3)
POSITIONS = "model.vlm_with_expert.vlm.model.vision_model.embeddings.position_embedding.weight"
SEED = 5
Record = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each type."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: write_checkpoint(folder / kind, kind) for kind in (*CHUNKS, "sac", "tdmpc")}


def seed_of(noise_seed: int, stamp: int) -> int:
    """The seed of an answer's draws, by the policy's seed and the stamp."""
    return int(np.random.SeedSequence([noise_seed, stamp]).generate_state(1, np.uint64)[0]) >> 1


def plain_answer(plain: PlainLeRobot, kind: str, robot: int, step: int) -> np.ndarray:
    """LeRobot's own answer to a robot that has sent every observation up to this one."""
    window = []
    for each in range(1, step + 1):
        images, state, task = observation(robot, each)
        window.append(plain.seen({name: images[name] for name in CAMERAS.get(kind, (TOP, WRIST))}, state, task))
    if kind in ("diffusion", "vqbet"):
        return plain.selected(window, seed_of(SEED, stamp_ns(robot, step)))
    return plain.predicted(window[-1], seed_of(SEED, stamp_ns(robot, step)))


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    assert np.ptp(wanted, axis=0).max() > 1e-3  # actions that never change would prove nothing
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("kind", CHUNKS)
def test_answers_are_those_of_lerobot(directories: dict[str, Path], kind: str, record_property: Record):
    """Three robots, the third of which comes later, in one pass; each beside LeRobot with that robot alone."""
    bench, plain = LeRobotBench(directories[kind], 3, noise_seed=SEED), PlainLeRobot(directories[kind])
    worst = 0.0
    for present, steps in ((ROBOTS[:2], (1, 1)), (ROBOTS, (2, 2, 1)), (ROBOTS, (3, 3, 2)), ((2,), (4,))):
        found = bench.send(*present)
        wanted = {robot: plain_answer(plain, kind, robot, step) for robot, step in zip(present, steps, strict=True)}
        worst = max([worst, *(difference(found[robot], wanted[robot]) for robot in present)])
    record_property("difference", worst)
    print(f"{kind}: largest relative difference from LeRobot {worst:.1e}")
    assert worst <= EXACT


@pytest.mark.parametrize("kind", CHUNKS)
def test_who_shares_a_pass_changes_nothing(directories: dict[str, Path], kind: str):
    together, alone = LeRobotBench(directories[kind], 3), LeRobotBench(directories[kind], 3)
    for _ in range(3):
        shared = together.send(*ROBOTS)
        for robot in ROBOTS[::-1]:
            assert difference(shared[robot], alone.send(robot)[robot]) <= EXACT


@pytest.mark.parametrize("kind", RANDOM)
def test_draws_follow_from_the_seed(directories: dict[str, Path], kind: str):
    first, again, other = (LeRobotBench(directories[kind], noise_seed=seed).send(1)[1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert difference(first, other) > EXACT


@pytest.mark.parametrize("kind", NATIVE)
def test_the_built_in_family_answers_alike(directories: dict[str, Path], kind: str, tmp_path: Path):
    """The noise of the plug-in is given to the built-in SmolVLA, which has other random numbers.

    Its patches all have one position: in float32, transformers 4.57 gives each patch the position of the one before it,
    which neither bfloat16, in which LeRobot loads the published model, nor other versions do.
    """
    directory = shutil.copytree(directories[kind], tmp_path / kind)
    if kind == "smolvla":
        weights = load_file(directory / "model.safetensors")
        positions = weights[POSITIONS]
        weights[POSITIONS] = np.repeat(positions[:1], len(positions), axis=0)
        save_file(weights, directory / "model.safetensors")
    plug_in, built_in = LeRobotBench(directory), LeRobotBench(directory, family=kind)
    assert plug_in.policy.inputs == built_in.policy.inputs or kind == "smolvla"  # which takes images of any size
    policy = built_in.policy
    if kind == "smolvla":
        drawn = policy.prepare

        def prepare(seen: Observation) -> Any:
            frame = drawn(seen)
            generator = torch.Generator().manual_seed(seed_of(0, seen.stamp_ns))
            return replace(frame, noise=torch.normal(0.0, 1.0, frame.noise.shape, generator=generator))

        policy.prepare = prepare
    worst = max(difference(plug_in.send(1)[1], built_in.send(1)[1]) for _ in range(3))
    print(f"{kind}: largest relative difference from the built-in family {worst:.1e}")
    assert worst <= EXACT


@pytest.mark.parametrize("kind", ["sac", "tdmpc"])
def test_a_policy_of_single_actions_serves_one_robot(directories: dict[str, Path], kind: str):
    bench, plain = LeRobotBench(directories[kind]), PlainLeRobot(directories[kind])
    for _ in range(2):  # episodes
        plain.policy.reset()
        for _ in range(3):
            step = bench.steps[1] + 1
            _, state, task = observation(1, step)
            torch.manual_seed(seed_of(0, stamp_ns(1, step)))
            wanted = plain.sent(plain.policy.select_action(plain.seen({}, state, task)))
            found = bench.send(1)[1]
            assert found.shape == wanted.shape == (1, wanted.shape[1])
            assert np.abs(found - wanted).max() <= EXACT * np.abs(wanted).max()
        bench.reset(1)


@pytest.mark.parametrize("kind", ["diffusion", "smolvla"])
def test_the_conformance_kit_finds_only_that_weights_stay_in_float32(directories: dict[str, Path], kind: str):
    settings = {"policy.family": "lerobot", "policy.control_rate_hz": 10.0, "device": "cpu"}
    verdicts = check_policy(load_config(None, {"model": str(directories[kind]), **settings}))
    assert [each.name for each in verdicts if each.failed] == ["dtypes"]
