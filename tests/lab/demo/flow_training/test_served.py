"""The flow policy as it is served beside the network that was trained, in float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from edgeflow.contract import Image, Observation
from edgeflow.engine.control.history import first_prompts
from edgeflow.engine.flow.frames import Previous, guidance_of
from edgeflow.lab.demo.flow_training.export import IMAGE, STATE
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids
from edgeflow.lab.demo.world.robot import state_of
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.verify.policies.flow.recorded_runs import Runner
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY
from tests.lab.demo.flow_training.reference import read_network, read_normaliser
from tests.lab.demo.flow_training.sampling import integrate
from tests.policies.flow.tiny_policies import loaded

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("delay", [0, 3, 6])
def test_answers_are_those_of_the_training_network(delay: int):
    policy, network = loaded(EMBEDDED_FLOW_POLICY), read_network(EMBEDDED_FLOW_POLICY)
    normaliser, sim = read_normaliser(EMBEDDED_FLOW_POLICY, network.size), RobotSim(3)
    pixels, state = sim.capture(), state_of(sim.pose(), sim.aperture)
    sim.close()
    seen = Observation(
        images={IMAGE: Image(96, 96, pixels.tobytes())},
        instruction=sim.instruction,
        state={STATE: tuple(state)},
        stamp_ns=7,
    )
    rows = np.random.default_rng(0).normal(size=(9, 7))
    sizes = policy.sizes
    with first_prompts(policy, [seen]) as (frame,):
        assert len(frame.pixel_values) == policy.inputs.history  # one frame, repeated
    frame = replace(frame, guidance=guidance_of(Previous(rows, delay), policy.rtc, sizes))
    served = Runner(policy.network, sizes).runs([frame], sizes.steps)[0].chunk

    tokenizer = Tokenizer.from_file(str(EMBEDDED_FLOW_POLICY / "vlm" / "tokenizer.json"))
    ids = torch.tensor([prompt_ids(tokenizer, sim.instruction)])
    left = torch.zeros(1, sizes.horizon, sizes.dims)
    left[0, :9, :7] = torch.from_numpy(rows)
    with torch.inference_mode():
        tokens = network.image_tokens(torch.from_numpy(pixels.copy())[None]).repeat(1, policy.inputs.history, 1)
        numbers = torch.zeros(1, len(normaliser.state.mean))  # no difference to earlier frames, no gap, no delay
        numbers[0, : len(state)] = torch.from_numpy(state)
        prefix = network.prefix(tokens, ids, normaliser.states(numbers))
        trained = integrate(network, prefix, frame.noise, left, torch.tensor([delay]), sizes.steps)[0]
    torch.testing.assert_close(served, trained, rtol=0, atol=1e-4)
    assert served[:delay].equal(left[0, :delay])
