"""Rendered training data of the flow policy: the token policy's, with the pose of the tool and a moving gripper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.training.data import SCENE_COLUMNS, Columns, SceneData, Studio, read_columns, render
from edgeflow.lab.demo.training.states import label
from edgeflow.lab.demo.world.layout import HANDLES
from edgeflow_client.pose import Pose

OPEN_SHARE: Final = 0.85  # share of the states; in the others the gripper is between open and closed
COLUMNS: Final[Columns] = {
    **SCENE_COLUMNS,
    "tool": ((7,), "float64"),
    "aperture": ((), "float32"),
    "grasps": ((HANDLES, 7), "float64"),
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlowDataset(SceneData):
    """Rendered states. tool `[N, 7]` is its pose (position, quaternion); aperture `[N]`; per handle, grasps `[N, 3,
    7]` are the poses in which the gripper closes.
    """

    tool: NDArray[np.float64]
    aperture: NDArray[np.float32]
    grasps: NDArray[np.float64]


def make_flow_dataset(
    folder: Path, count: int, seed: int, advance: Callable[[int], None], workers: int | None = None
) -> FlowDataset:
    """Render the missing ones of `count` states (rounded up to whole chunks); read all into memory."""
    render(folder, count, seed, advance, columns=COLUMNS, studio=FlowStudio, workers=workers)
    return FlowDataset(**read_columns(folder, COLUMNS))


class FlowStudio(Studio):
    """Samples states, some with the gripper at a random aperture, and renders them."""

    def shoot(self, rng: np.random.Generator) -> dict[str, Any]:
        """Sample and render one row of the data set, by column."""
        state = self._pose(rng)
        aperture = 1.0 if rng.uniform() < OPEN_SHARE else float(rng.uniform())
        self._arm.teleport(state.tool, aperture)
        labels, tool = label(state), self._arm.pose()
        return {
            **self._scene_row(state, labels),
            "tool": flat(tool),
            "aperture": aperture,
            "grasps": [flat(handle.grasp(0.0)) for handle in state.handles],
        }


def flat(pose: Pose) -> NDArray[np.float64]:
    """Position and quaternion of a pose, `[7]`."""
    return np.concatenate([pose.position, pose.wxyz])
