"""Training states: tool poses around the approach to each handle, and their labels.

The expert's answer depends only on the state, so states are sampled independently instead of rolled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.world.expert import expert_action
from edgeflow.lab.demo.world.layout import HANDLES, Handle, sample_layout
from edgeflow.lab.demo.world.robot import REACH_HIGH, REACH_LOW
from edgeflow.lab.demo.world.sim import sample_start
from edgeflow_client.pose import Pose, Vector, compose, from_rotvec, relative, to_rotvec

FOCAL: Final = 48.0 / np.tan(np.deg2rad(42.5))  # focal length in pixels: 96 pixels over 85 degrees
CAMERA_BEHIND: Final = 0.11  # metres from the camera to the tool centre point, along the tool
_HALF_IMAGE: Final = 48.0
_MARGIN: Final = 1.0  # pixels; a plate whose centre is nearer to the border counts as out of view
_START_SHARE, _NEAR_SHARE = 0.22, 0.40
_NEAR_METRES, _NEAR_RADIANS = (0.0015, 0.05), (0.015, 0.40)  # spread of nearby states, log-uniform
_FUNNEL_METRES, _FUNNEL_RADIANS = 0.025, 0.12  # spread around the straight approach


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """One training state."""

    handles: tuple[Handle, ...]
    target: int
    """The handle around whose approach the tool pose was sampled."""
    tool: Pose


@dataclass(frozen=True, slots=True, eq=False)
class StateLabels:
    """Labels of a state, per handle."""

    actions: NDArray[np.float32]
    """`[HANDLES, 7]` float32."""
    pixels: NDArray[np.float32]
    """`[HANDLES, 2]`, where the plate appears."""
    visible: NDArray[np.bool_]
    """`[HANDLES]` bool."""


def sample_state(rng: np.random.Generator) -> TrainingState:
    """A state in which the target is in view and the tool within the arm's workspace."""
    while True:
        handles = sample_layout(rng, 0.0)
        target = int(rng.integers(HANDLES))
        tool = sample_tool(rng, handles[target].grasp(0.0))
        if within_reach(tool) and label(TrainingState(handles, target, tool)).visible[target]:
            return TrainingState(handles, target, tool)


def label(state: TrainingState) -> StateLabels:
    """The expert's action for every handle, and the handle's position in the image."""
    actions = [expert_action(state.tool, handle.grasp(0.0)) for handle in state.handles]
    return StateLabels(np.array(actions, np.float32), *seen_handles(state.handles, state.tool, 0.0))


def seen_handles(handles: Sequence[Handle], tool: Pose, time: float) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Where the plates appear in the image at a time of the episode, `[HANDLES, 2]`, and which are in view."""
    seen = [_project(tool, handle.pose(time).position) for handle in handles]
    pixels = np.array([pixel for pixel, _ in seen], np.float32)
    inside = np.all(np.abs(pixels - _HALF_IMAGE) < _HALF_IMAGE - _MARGIN, axis=1)
    return pixels, inside & np.array([ahead for _, ahead in seen])


def _project(tool: Pose, point: Vector) -> tuple[Vector, bool]:
    local = relative(tool, Pose(point, wxyz=np.array([1.0, 0.0, 0.0, 0.0]))).position
    depth = local[2] + CAMERA_BEHIND
    return _HALF_IMAGE + FOCAL * local[:2] / max(depth, 1e-3), bool(depth > 0.03)


def within_reach(tool: Pose) -> bool:
    """True if the tool's position is in the arm's workspace, or just outside."""
    return bool(np.all(tool.position > REACH_LOW - 0.02) and np.all(tool.position < REACH_HIGH + 0.02))


def sample_tool(rng: np.random.Generator, grasp: Pose) -> Pose:
    """A tool pose at the start, near the grasp, or on the way to it."""
    kind = rng.uniform()
    if kind < _START_SHARE:
        return sample_start(rng)
    if kind < _START_SHARE + _NEAR_SHARE:
        how_near = rng.uniform()
        return compose(grasp, random_offset(rng, between(how_near, _NEAR_METRES), between(how_near, _NEAR_RADIANS)))
    approach = relative(grasp, sample_start(rng))
    left, turned = rng.uniform() ** 1.5, rng.uniform() ** 1.5
    on_the_way = compose(grasp, Pose(left * approach.position, wxyz=from_rotvec(turned * to_rotvec(approach.wxyz))))
    return compose(on_the_way, random_offset(rng, _FUNNEL_METRES, _FUNNEL_RADIANS))


def random_offset(rng: np.random.Generator, metres: float, radians: float) -> Pose:
    """A random displacement and rotation; metres, radians: their standard deviation along each axis."""
    return Pose(metres * rng.standard_normal(3), wxyz=from_rotvec(radians * rng.standard_normal(3)))


def between(share: float, bounds: tuple[float, float]) -> float:
    """Interpolate log-linearly from the lower to the upper bound."""
    return float(np.exp((1.0 - share) * np.log(bounds[0]) + share * np.log(bounds[1])))
