"""The flow policy that is shipped."""

import numpy as np
import pytest
import torch
from safetensors import safe_open

from edgeflow.lab.demo.flow_training.export import STATE
from edgeflow.lab.demo.lockstep import FRESH_SEEDS, measure_runs
from edgeflow.lab.demo.world.robot import state_of
from edgeflow.lab.demo.world.scene import POLICY_SIZE
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import PHRASES
from edgeflow.model_paths import EMBEDDED_FLOW, EMBEDDED_FLOW_POLICY, resolve_model
from edgeflow_client.actions import resolve_rows
from edgeflow_client.pose import distance
from edgeflow_client.types import ActionSchema
from tests.lab.demo.chunk_episodes import ChunkTiming, EpisodeFrame, run_chunks
from tests.lab.demo.flow_training.reference import read_json, read_sampler, size_of

FOLDER = EMBEDDED_FLOW_POLICY


@pytest.fixture(scope="module")
def sampler():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield read_sampler(FOLDER)
    torch.set_num_threads(before)


def test_it_is_found_by_its_name_and_small():
    assert resolve_model(EMBEDDED_FLOW) == FOLDER
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        roots = {".".join(name.split(".")[:2]) for name in file.keys()}  # noqa: SIM118
    assert kinds == {torch.bfloat16}
    layers = ("action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out", "state_proj")
    assert roots == {f"model.{each}" for each in (*layers, "vlm_with_expert")}
    assert (FOLDER / "model.safetensors").stat().st_size < 8 * 2**20


def test_its_files_state_sizes_of_the_robot_and_of_the_network():
    robot, config, size = (*(read_json(FOLDER / f"{name}.json") for name in ("edgeflow", "config")), size_of(FOLDER))
    schema = _schema(robot, size.chunk)
    assert schema.relative == (True,) * 6 + (False,)
    assert len(robot["state_names"]) == len(robot["state_units"]) == config["input_features"][STATE]["shape"][0] == 7
    assert size.vocab <= 2048
    assert size.image == POLICY_SIZE <= 128


def _schema(robot, rows):
    lists = {name: tuple(robot[f"action_{name}"]) for name in ("names", "units", "low", "high", "relative")}
    rate = robot["control_rate_hz"]
    return ActionSchema(
        **lists,
        frame=robot["frame"],
        rotation=robot["rotation"],
        control_rate_hz=rate,
        horizon=rows,
        step_ms=1000.0 / rate,
    )


def test_the_named_colour_decides_where_a_chunk_heads(sampler):
    sim, schema = RobotSim(0), _schema(read_json(FOLDER / "edgeflow.json"), 48)
    asked, tools, goals, others = [], [], [], []
    for seed in range(FRESH_SEEDS + 500_000, FRESH_SEEDS + 500_005):
        sim.reset(seed)
        for index, handle in enumerate(sim.handles):
            text = PHRASES[0].format(handle.colour)
            asked.append(EpisodeFrame(sim.capture(), text, state_of(sim.pose(), sim.aperture)))
            tools.append(sim.pose())
            goals.append(sim.grasps()[index])
            others.append([each for other, each in enumerate(sim.grasps()) if other != index])
    sim.close()
    reached = [resolve_rows(schema, chunk, tool).pose for chunk, tool in zip(sampler(asked), tools, strict=True)]
    nearer = [
        distance(pose, goal) < min(distance(pose, each) for each in rest)
        for pose, goal, rest in zip(reached, goals, others, strict=True)
    ]
    assert np.mean(nearer) >= 0.9


@pytest.mark.parametrize("timing", [ChunkTiming(every=4), ChunkTiming(every=2, delay=2, conditioned=True)])
def test_it_succeeds_with_and_without_a_delay(sampler, timing):
    result = measure_runs(lambda sims: run_chunks(sims, sampler, timing), 0.0, 6, FRESH_SEEDS + 500_000)
    assert result.rate.successes >= 5
