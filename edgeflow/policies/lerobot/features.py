"""The inputs and outputs that a LeRobot config.json lists. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.text.fields import Fields
from edgeflow_client.errors import CheckpointError

CONFIG_FILE = "config.json"
STATE, ENVIRONMENT, ACTION = "observation.state", "observation.environment_state", "action"
TYPES = ("VISUAL", "STATE", "ENV", "ACTION", "REWARD", "LANGUAGE")
LONGEST = 4096  # pixels of a side


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """An image input: RGB images of height x width pixels."""

    name: str
    height: int
    width: int


def read_cameras(inputs: Fields) -> tuple[Camera, ...]:
    """The image inputs, in the order of the file."""
    found = []
    for name in inputs:
        feature = inputs.object(name)
        if feature.choice("type", TYPES) == "VISUAL":
            channels, height, width = feature.shape("shape", 3)
            if channels != 3:
                raise CheckpointError(f"{feature.name('shape')} has {channels} channels; served: 3")
            if max(height, width) > LONGEST:
                raise CheckpointError(
                    f"{feature.name('shape')} has {width} x {height} pixels; served: sides to {LONGEST}"
                )
            found.append(Camera(name=name, height=height, width=width))
    return tuple(found)


def read_vector(inputs: Fields, kind: str, name: str) -> int:
    """The size of a vector input, 0 where there is none. Networks read only those of the published names."""
    if name not in inputs:
        return 0
    feature = inputs.object(name)
    feature.choice("type", (kind,))
    return feature.shape("shape", 1)[0]
