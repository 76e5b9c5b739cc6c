"""Rendered sequences of frames along plausible motions of the tool, for a policy that reads the last frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.data import FlowStudio, flat
from edgeflow.lab.demo.training.data import Columns, read_columns, render
from edgeflow.lab.demo.training.states import between, random_offset, sample_tool, seen_handles, within_reach
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES, Handle, sample_layout
from edgeflow.lab.demo.world.robot import GRIPPER_TIME, approach
from edgeflow.lab.demo.world.scene import POLICY_SIZE
from edgeflow_client.pose import Pose, compose

FRAMES: Final = 7
FRAME_S: Final = 0.1  # mean time between frames
TOP_SPEED: Final = 0.13  # m/s of the handles
STILL_SHARE: Final = 0.2  # share of the sequences with still handles
_JITTER_S: Final = 0.02
_REST_SHARE: Final = 0.4  # share in which the tool rests throughout
_STOP_SHARE: Final = 0.35  # share of the others in which it stops within the sequence
_OFF_METRES, _OFF_RADIANS = (0.001, 0.04), (0.01, 0.25)  # error of the pose that it heads for, log-uniform
_OPEN_SHARE: Final = 0.8
COLUMNS: Final[Columns] = {
    "images": ((FRAMES, POLICY_SIZE, POLICY_SIZE, 3), "uint8"),
    "pixels": ((FRAMES, HANDLES, 2), "float32"),
    "visible": ((FRAMES, HANDLES), "bool"),
    "times": ((FRAMES,), "float64"),
    "tool": ((FRAMES, 7), "float64"),
    "aperture": ((FRAMES,), "float32"),
    "colours": ((HANDLES,), "int64"),
    "target": ((), "int64"),
    "grasps": ((HANDLES, 7), "float64"),
    "origin": ((HANDLES, 2), "float64"),
    "velocity": ((HANDLES, 2), "float64"),
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceData:
    """N sequences of F frames."""

    images: NDArray[np.uint8]
    """`[N, F, 96, 96, 3]`."""
    pixels: NDArray[np.float32]
    """`[N, F, 3, 2]`, where the plates appear."""
    visible: NDArray[np.bool_]
    """`[N, F, 3]`."""
    times: NDArray[np.float64]
    """`[N, F]`, seconds since the first frame."""
    tool: NDArray[np.float64]
    """`[N, F, 7]`, the tool's pose (position, quaternion)."""
    aperture: NDArray[np.float32]
    """`[N, F]`."""
    colours: NDArray[np.int64]
    """`[N, 3]`, indices into COLOURS."""
    target: NDArray[np.int64]
    """`[N]`, the handle that the tool heads for."""
    grasps: NDArray[np.float64]
    """`[N, 3, 7]`, the poses at time 0 in which the gripper closes."""
    origin: NDArray[np.float64]
    """`[N, 3, 2]`, the plates' planar positions at time 0."""
    velocity: NDArray[np.float64]
    """`[N, 3, 2]`, m/s at time 0."""

    def __len__(self) -> int:
        return len(self.target)


def make_sequences(folder: Path, count: int, seed: int, advance: Callable[[int], None]) -> SequenceData:
    """Render the missing ones of `count` sequences (rounded up to whole chunks); images stay on disk."""
    render(folder, count, seed, advance, columns=COLUMNS, studio=SequenceStudio)
    return SequenceData(**read_columns(folder, COLUMNS, mapped="images"))


class SequenceStudio(FlowStudio):
    """Samples motions of handles and tool, and renders them."""

    def shoot(self, rng: np.random.Generator) -> dict[str, Any]:
        """Sample and render one sequence, by column."""
        while True:
            still = rng.uniform() < STILL_SHARE
            handles = sample_layout(rng, 0.0 if still else TOP_SPEED * rng.uniform())
            target = int(rng.integers(HANDLES))
            times = FRAME_S * np.arange(FRAMES) + rng.uniform(-_JITTER_S, _JITTER_S, FRAMES)
            times -= times[0]
            tools, aperture = _tool_poses(rng, handles[target], times), _apertures(rng, times)
            ends = [seen_handles(handles, tools[frame], times[frame])[1][target] for frame in (0, -1)]
            if all(ends) and all(map(within_reach, tools)):
                row = self._rendered(handles, tools, aperture, times)
                if row is not None:
                    return {**row, "times": times, "aperture": aperture, "target": target}

    def _rendered(
        self, handles: tuple[Handle, ...], tools: list[Pose], aperture: NDArray[np.float64], times: NDArray[np.float64]
    ) -> dict[str, Any] | None:
        """The rendered columns of a sequence; None if the arm cannot reach all poses."""
        self._scene.paint(handles)
        images, poses, seen = [], [], []
        for tool, opening, time in zip(tools, aperture, times, strict=True):
            self._scene.place(handles, time)
            if self._arm.teleport(tool, float(opening)) >= 1e-3:
                return None
            images.append(self._scene.picture(self._scene.moment()))
            poses.append(self._arm.pose())
            seen.append(seen_handles(handles, poses[-1], time))
        return {
            "images": images,
            "pixels": [pixels for pixels, _ in seen],
            "visible": [visible for _, visible in seen],
            "tool": [flat(pose) for pose in poses],
            "colours": [list(COLOURS).index(handle.colour) for handle in handles],
            "grasps": [flat(handle.grasp(0.0)) for handle in handles],
            "origin": [handle.origin[:2] for handle in handles],
            "velocity": [handle.velocity for handle in handles],
        }


def _tool_poses(rng: np.random.Generator, handle: Handle, times: NDArray[np.float64]) -> list[Pose]:
    """The tool's poses at rest, or while it follows the handle with an error, from a time on or up to a time."""
    pose = sample_tool(rng, handle.grasp(0.0))
    poses = [pose]
    off = random_offset(rng, between(rng.uniform(), _OFF_METRES), between(rng.uniform(), _OFF_RADIANS))
    begins, stops = 0.0, np.inf
    kind = rng.uniform()
    if kind < _REST_SHARE:
        begins = np.inf
    elif kind < _REST_SHARE + (1.0 - _REST_SHARE) * _STOP_SHARE:
        stops = rng.uniform(0.0, times[-1])
    elif rng.uniform() < 0.4:
        begins = rng.uniform(0.0, times[-1])
    pace = rng.uniform(0.3, 1.0) if rng.uniform() < 0.2 else 1.0  # of a robot that is told to be slow
    for before, time in pairwise(times):
        moving = max(0.0, min(time, stops) - max(before, begins))
        pose = approach(pose, compose(handle.grasp(time), off), pace * moving) if moving else pose
        poses.append(pose)
    return poses


def _apertures(rng: np.random.Generator, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gripper: mostly open, otherwise closed on nothing, opening or closing."""
    if rng.uniform() < _OPEN_SHARE:
        return np.ones(len(times))
    if rng.uniform() < 0.4:
        return np.zeros(len(times))
    opening = rng.choice([-1.0, 1.0])
    return np.asarray(np.clip(0.5 + opening * (times - rng.uniform(0.0, times[-1])) / GRIPPER_TIME, 0.0, 1.0))
