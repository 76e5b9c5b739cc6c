"""The parts of a policy of chunks that tests of simulated robots share."""

from __future__ import annotations

import numpy as np
import torch

from edgeflow.contract import PROMPT, CameraNeed, PolicyInputs, Stage, StageProgram
from edgeflow.lab.demo.flow_training.chunks import expert_chunks
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow_client.pose import from_rotvec, multiply
from edgeflow_client.types import ActionSchema, StateSpec
from tests.lab.demo.flow_training.reference import flat

ROWS, STEP_MS = 16, 50.0


class OnePassStub:
    """A policy that answers a frame with ROWS rows in one pass, the tool's displacements and the gripper's opening."""

    fixed_rows = 1
    rtc = None
    unusual_states = 0
    device, dtype = torch.device("cpu"), torch.float32
    unnorm_keys = ("stub",)
    inputs = PolicyInputs(
        cameras=(CameraNeed(name="wrist", named=False),), state=(StateSpec(name="observation.state", size=7),)
    )

    def program(self, unnorm_key=None):
        return StageProgram((Stage(rows=PROMPT),))

    def text_rows(self, instruction, state=None):
        return 0

    def prompt_tokens(self, frame):
        return 0

    def batch(self, frames, tokens):
        """The frames are kept: they are no tensors."""
        self._frames = frames
        return [torch.zeros(len(frames))]

    def run(self, batch, *, on_host):
        return self.chunks(self._frames)

    def actions(self, values, unnorm_key=None):
        return values

    def action_schema(self, unnorm_key=None):
        return ActionSchema(
            names=("x", "y", "z", "roll", "pitch", "yaw", "gripper"),
            units=("m",) * 3 + ("rad",) * 3 + ("fraction",),
            low=(-1.0,) * 6 + (0.0,),
            high=(1.0,) * 7,
            relative=(True,) * 6 + (False,),
            frame="tool",
            rotation="rotvec",
            horizon=ROWS,
            step_ms=STEP_MS,
        )


class ExpertPolicy(OnePassStub):
    """A policy that reads the state it is sent and knows where the handle is."""

    def __init__(self, sim):
        self._sim = sim

    def prepare(self, observation):
        state = np.array(observation.state["observation.state"])
        return np.concatenate([state[:3], multiply(TOOL_DOWN, from_rotvec(state[3:6]))]), state[6]

    def chunks(self, frames):
        grasp = flat(self._sim.grasps()[self._sim.task.target])
        return torch.from_numpy(np.stack([expert_chunks(tool, grasp, aperture, ROWS) for tool, aperture in frames]))
