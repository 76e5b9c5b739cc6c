"""Chunks from end to end: `edgeflow serve` with a policy of cameras and state, and a robot that uses the SDK."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from edgeflow.contract import Image, Observation
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.policy import LoadOptions, OnePassPolicy, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.offline import run_once
from edgeflow.policies.registry import family_of
from edgeflow_client.actions import Action
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft
from tests.policies.service_process import served
from tests.service.front_process import HANG_S

INSTRUCTION = "put the cup on the plate"
CPU = torch.device("cpu")


def loaded(directory: Path, settings: dict[str, Any]) -> OnePassPolicy:
    """The policy in this process."""
    chosen = dict(settings)
    family = family_of(directory, chosen.pop("family", ""))
    placement = Placement(dtype=torch.float32, device=CPU, table=built_in_table())
    policy: Any = family.load(directory, chosen, LoadOptions()).load(placement)
    family.prepare(policy, EngineOptions(sessions=1, text_rows=128, table=built_in_table()))
    return policy


@torch.inference_mode()
def answer_of(policy: OnePassPolicy, seen: Observation) -> np.ndarray:
    """[horizon, D] in the schema's units."""
    values = run_once(policy, [policy.prepare(seen)])[0].double().numpy()
    return policy.actions(values, policy.unnorm_keys[0])


def first_action(acted: SimpleQueue[Action], push: Callable[[], object]) -> Action:
    """Push frames until one is answered."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        push()
        with contextlib.suppress(Empty):
            return acted.get(timeout=0.2)
    raise AssertionError("no frame was answered")


def checkpoints(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    size = TinyOFT()
    return {
        "act": (write_checkpoint(folder / "act"), {"control_rate_hz": 2.0}),
        "openvla_oft": (
            write_oft(folder / "oft", size),
            {"family": "openvla_oft", **size.settings(), "control_rate_hz": 2.0},
        ),
    }


@pytest.mark.parametrize("name", ["act", "openvla_oft"])
def test_a_robot_gets_the_chunk_that_the_policy_computes(tmp_path: Path, name: str):
    directory, settings = checkpoints(tmp_path)[name]
    policy = loaded(directory, settings)
    random = np.random.default_rng(0)
    needs = policy.inputs
    pixels = {each.name: random.integers(0, 256, (each.height or 30, each.width or 40, 3), np.uint8)
              for each in needs.cameras}  # fmt: skip
    state = {each.name: tuple(random.uniform(-1, 1, each.size).astype(np.float32).tolist()) for each in needs.state}
    images = {each: Image(*values.shape[:2], values.tobytes()) for each, values in pixels.items()}
    wanted = answer_of(policy, Observation(images=images, state=state, instruction=INSTRUCTION))

    # The robot's names are its own, and it sends more than is needed, in another order.
    names = {each: f"robot_{index}" for index, each in enumerate(pixels)}
    cameras = [
        CameraSpec(names[each], values.shape[1], values.shape[0], ImageFormat.RGB8) for each, values in pixels.items()
    ]
    cameras = [CameraSpec("spare", 8, 8, ImageFormat.RGB8), *cameras[::-1]]
    sent = {names[each]: values for each, values in pixels.items()} | {"spare": np.zeros((8, 8, 3), np.uint8)}
    vectors = [StateSpec(name="force", size=2), *(StateSpec(name=each.name, size=each.size) for each in needs.state)]
    with served(tmp_path, str(directory), policy=settings, cameras=names) as address:
        options: dict[str, Any] = {"instruction": INSTRUCTION, "control_period_s": 0.1, "open_timeout_s": 30.0}
        acted: SimpleQueue[Action] = SimpleQueue()
        options["on_action"] = lambda directive: directive.action and acted.put(directive.action)
        with RobotClient(address, cameras=cameras, state=vectors, **options) as robot:
            schema = robot.opened.schema
            assert (schema.horizon, schema.step_ms) == (len(wanted), 500.0)
            action = first_action(acted, lambda: robot.push(sent, state={"force": (0.0, 0.0), **state}))
            assert np.allclose(action.chunk, wanted, rtol=1e-5, atol=1e-5)
            assert np.array_equal(action.values, action.chunk[action.step])
        with pytest.raises(InvalidArgument, match=r"the policy needs .* the robot sends"):
            RobotClient(address, cameras=cameras[:1], state=vectors, **options).__enter__()
