"""Name maps: which part of an environment's observation is which input of a policy, and what an action is."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from edgeflow.policies.settings import STRICT
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

MAX_BYTES = 1 << 20
RENDERED = "render()"
"""As a camera, the picture that the environment renders."""


class NameMap(BaseModel):
    """The inputs of a policy in an environment, and its actions.

    A path names a part of the observation: keys with / between them, then numbers of a vector as [first:end], such as
    `pixels/top` or `agent_pos[:4]`.
    """

    model_config = STRICT

    cameras: dict[str, str] = {}
    """Path of the picture by name of the camera; `render()` is the picture that the environment renders."""
    upside_down: list[str] = []
    """Cameras whose pictures are turned by 180 degrees before the policy sees them."""
    state: dict[str, str | list[str]] = {}
    """Path of the vector by name of the state vector, or paths of vectors that are joined."""
    instruction: str = ""
    """The task in words; empty = the environment's `instruction`, if it has one."""
    rate_hz: float | None = None
    """Control steps per simulated second; None = the environment's `render_fps`."""
    success: str = "is_success"
    """Path of the sign of success in what the environment's steps report as info; empty = it has none."""
    take: list[int] | None = None
    """The policy's numbers that the environment gets, in its order; None = all."""
    scale: float | list[float] = 1.0
    """Factor of each of these numbers, applied before `offset`."""
    offset: float | list[float] = 0.0
    """Added to each of these numbers."""
    hold: str | list[float | None] = []
    """The action that keeps the robot still: the path of a vector, read when the hold begins, or numbers. A null is the
    number of the last action, 0 before the first; empty = all are.
    """
    make: dict[str, Any] = {}
    """Arguments of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSimulator:
    """Environments of a package, and their names."""

    pattern: str
    """Their ids, as fnmatch reads them."""
    package: str
    """Its name for pip."""
    module: str
    """Its name for Python."""
    registry: str = ""
    """The module that registers its environments; "" = its own."""
    opengl: bool
    """It renders by OpenGL."""
    names: Mapping[str, Any] = field(default_factory=dict)
    """Fields of NameMap, for policies with LeRobot's names."""


_PIXELS = {"obs_type": "pixels_agent_pos", "render_mode": "rgb_array"}
_ALOHA = {
    "cameras": {"observation.images.top": "pixels/top"},
    "state": {"observation.state": "agent_pos"},
    "hold": "agent_pos",
    "make": _PIXELS,
}
KNOWN = (
    KnownSimulator(
        pattern="gym_pusht/*",
        package="gym-pusht",
        module="gym_pusht",
        opengl=False,
        names={
            "cameras": {"observation.image": "pixels"},
            "state": {"observation.state": "agent_pos"},
            "instruction": "Push the T-shaped block onto the T-shaped target.",
            "hold": "agent_pos",
            "make": _PIXELS,
        },
    ),
    KnownSimulator(
        pattern="gym_aloha/AlohaInsertion*",
        package="gym-aloha",
        module="gym_aloha",
        opengl=True,
        names={**_ALOHA, "instruction": "Insert the peg into the socket."},
    ),
    KnownSimulator(
        pattern="gym_aloha/*",
        package="gym-aloha",
        module="gym_aloha",
        opengl=True,
        names={**_ALOHA, "instruction": "Pick up the cube with the right arm and transfer it to the left arm."},
    ),
    KnownSimulator(
        pattern="Meta-World/*",
        package="metaworld",
        module="metaworld",
        opengl=True,
        names={
            "cameras": {"observation.image": RENDERED},
            "upside_down": ["observation.image"],
            "state": {"observation.state": "[:4]"},
            "success": "success",
            "hold": [0.0, 0.0, 0.0, None],
            "make": {"render_mode": "rgb_array", "camera_name": "corner2"},
        },
    ),
    KnownSimulator(
        pattern="libero/*",
        package="hf-libero",
        module="libero",
        registry="edgeflow.lab.sim.libero",
        opengl=True,
        names={
            "cameras": {
                "observation.images.image": "agentview_image",
                "observation.images.image2": "robot0_eye_in_hand_image",
            },
            "upside_down": ["observation.images.image", "observation.images.image2"],
            "state": {"observation.state": "state"},
            "hold": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None],
        },
    ),
)


def known(environment: str) -> KnownSimulator | None:
    """The entry of an environment's id."""
    return next((each for each in KNOWN if fnmatch.fnmatchcase(environment, each.pattern)), None)


def names_of(environment: str, file: Path | None = None) -> NameMap:
    """The names of an environment: those that are known, if any, and for each key of a file, the file's.

    ConfigError names the file and the key.
    """
    entry = known(environment)
    values = dict(entry.names) if entry else {}
    try:
        given = json.loads(read_regular(file, MAX_BYTES)) if file else {}
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigError(f"names: {file} cannot be read: {reason}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"names: {file} must hold a JSON object with keys such as cameras and state")
    try:
        return NameMap.model_validate({**values, **given})
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            raise ConfigError(f"names.{key}: unknown key; known: {', '.join(NameMap.model_fields)}") from None
        raise ConfigError(f"names.{key}: {detail['input']!r:.60} {detail['msg'].removeprefix('Input ')}") from None
