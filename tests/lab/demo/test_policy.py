"""The policy that is shipped."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from edgeflow.lab.demo.lockstep import FRESH_SEEDS, EpisodeCondition, measure
from edgeflow.lab.demo.world.expert import expert_action
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import PHRASES
from edgeflow.model_paths import EMBEDDED_POLICY
from tests.lab.demo.reference_policy import read_policy

FOLDER = EMBEDDED_POLICY


@pytest.fixture(scope="module")
def policy():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield read_policy(FOLDER)
    torch.set_num_threads(before)


def test_weights_are_bf16_under_published_names_and_small():
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        roots = {name.split(".")[0] for name in file.keys()}  # noqa: SIM118
        assert file.get_tensor("vision_backbone.featurizer.blocks.0.ls1.scale_factor").shape == (96,)
    assert kinds == {torch.bfloat16}
    assert roots == {"vision_backbone", "projector", "language_model"}
    assert (FOLDER / "model.safetensors").stat().st_size < 8 * 2**20


def test_the_configuration_states_the_action_space():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["model_type"] == "openvla"
    assert config["edgeflow_action"]["frame"] == "tool"
    assert config["edgeflow_action"]["rotation"] == "rotvec"
    stats = config["norm_stats"]["edgeflow_demo"]["action"]
    assert len(stats["q01"]) == len(stats["q99"]) == len(config["edgeflow_action"]["names"]) == 7


def test_the_named_colour_decides_where_the_policy_goes(policy):
    sim = RobotSim(0)
    images, texts, truths = [], [], []
    for seed in range(FRESH_SEEDS + 500_000, FRESH_SEEDS + 500_005):
        sim.reset(seed)
        for handle, grasp in zip(sim.handles, sim.grasps(), strict=True):
            images.append(sim.capture())
            texts.append(PHRASES[0].format(handle.colour))
            truths.append(expert_action(sim.pose(), grasp))
    sim.close()
    misses = np.linalg.norm((policy(images, texts) - np.array(truths))[:, :2], axis=1)
    assert np.mean(misses < 0.03) >= 0.9


def test_the_policy_solves_at_least_9_of_10_fresh_episodes(policy):
    result = measure(policy, EpisodeCondition(), episodes=10, first_seed=FRESH_SEEDS + 600_000)
    assert result.rate.successes >= 9
