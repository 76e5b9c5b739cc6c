"""Tiny checkpoints as served policies, and observations for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgeflow.contract import Image, Observation
from edgeflow.engine.control.engine import EngineOptions, flow_engine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.policies.flow.policy import DenoisingPolicy
from edgeflow.policies.registry import family_of
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode
from tests.policies.flow.tiny import STATE, TOP, WRIST

RATE = {"control_rate_hz": 20.0}
CPU = torch.device("cpu")


def loaded(directory: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> DenoisingPolicy:
    """The policy of a checkpoint."""
    family = family_of(directory)
    placement = Placement(dtype=dtype, device=CPU, table=built_in_table())
    policy: Any = family.load(directory, {**RATE, **settings}, LoadOptions()).load(placement)
    return policy


def observation(seed: int, *cameras: str, instruction: str = "lift it", **parts: Any) -> Observation:
    """Noise of odd sizes from some cameras, both by default."""
    generator = np.random.default_rng(seed)
    images = {}
    for index, name in enumerate(cameras or (TOP, WRIST)):
        height, width = 9 + index, 21 - 4 * index
        images[name] = Image(height, width, generator.integers(0, 256, (height, width, 3), np.uint8).tobytes())
    state = {STATE: tuple(generator.normal(size=3).tolist())}
    return Observation(**{"images": images, "instruction": instruction, "state": state, "stamp_ns": seed, **parts})


def answers(policy: DenoisingPolicy, frames: list[Any], mode: Mode) -> list[torch.Tensor]:
    """The normalised chunks of prepared frames through the engine: [M, H, A] each."""
    options = EngineOptions(sessions=1, text_rows=64, table=built_in_table())
    engine = flow_engine(policy, options)
    run = OfflineRun(engine, Scheduler(limits_for(policy.program().passes)), [mode])
    return [torch.from_numpy(each.sampled.values) for each in run.decode([frames])[0]]
