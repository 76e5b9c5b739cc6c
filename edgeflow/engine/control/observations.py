"""Frames as control sends them, as observations of a policy."""

from __future__ import annotations

from itertools import accumulate

from edgeflow.contract import Observation, PolicyInputs
from edgeflow.ipc.messages import SubmitFrame
from edgeflow_client.errors import WorkerError


def observation_of(message: SubmitFrame, inputs: PolicyInputs) -> Observation:
    """The observation of a frame, by the policy's names; WorkerError unless it has what the policy needs."""
    state = state_of(message, inputs)
    return Observation(
        images={camera.name: image for camera, image in zip(inputs.cameras, message.images(), strict=True)},
        state=state,
        instruction=message.instruction,
        stamp_ns=message.stamp_ns,
    )


def state_of(message: SubmitFrame, inputs: PolicyInputs) -> dict[str, tuple[float, ...]]:
    """The state vectors of a frame, by the policy's names; WorkerError unless it has what the policy needs."""
    images, sizes = len(message.sizes) // 2, [each.size for each in inputs.state]
    if images != len(inputs.cameras) or len(message.state) != sum(sizes):
        raise WorkerError(
            f"a frame has {images} images and {len(message.state)} numbers; "
            f"the policy needs {len(inputs.cameras)} and {sum(sizes)}"
        )
    vectors = zip(inputs.state, accumulate(sizes), strict=True)
    return {need.name: tuple(message.state[end - need.size : end]) for need, end in vectors}
