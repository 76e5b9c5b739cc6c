"""The stub policy in a scripted worker: a service with it starts without torch, and answers as a real worker does."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import load_file

from edgeflow.contract import Image, Observation
from edgeflow.ipc.messages import SubmitFrame
from tests.plugins.edgeflow_stub import StubPolicy, obeyed
from tests.service.scripted import Script


def stub_script(checkpoint: Path) -> Script:
    """A script that answers as the stub policy of a checkpoint; it obeys the instructions that spare its process."""
    config = json.loads((checkpoint / "config.json").read_text())
    policy = StubPolicy(config, load_file(checkpoint / "model.safetensors"), None, None)

    def values(frame: SubmitFrame) -> list[float]:
        images: list[Image] = frame.images()
        state, begin = {}, 0
        for need in policy.inputs.state:
            state[need.name] = tuple(frame.state[begin : begin + need.size])
            begin += need.size
        seen = Observation(
            images={need.name: image for need, image in zip(policy.inputs.cameras, images, strict=True)},
            instruction=frame.instruction,
            state=state,
        )
        return obeyed(config, *policy.prepare(seen)).reshape(-1).tolist()

    return Script(values=values, inputs=policy.inputs, schema=policy.action_schema())
