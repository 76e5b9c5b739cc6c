"""Rendered training data of the flow policy: the token policy's, with the pose of the tool and a moving gripper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.training.data import Columns, Studio, read_columns, render
from edgeflow.lab.demo.training.states import label
from edgeflow.lab.demo.world.layout import HANDLES
from edgeflow.lab.demo.world.scene import POLICY_SIZE
from edgeflow_client.pose import Pose

OPEN_SHARE: Final = 0.85  # of the states; in the others the gripper is somewhere between open and closed
COLUMNS: Final[Columns] = {
    "images": ((POLICY_SIZE, POLICY_SIZE, 3), "uint8"),
    "tool": ((7,), "float64"),
    "aperture": ((), "float32"),
    "grasps": ((HANDLES, 7), "float64"),
    "pixels": ((HANDLES, 2), "float32"),
    "visible": ((HANDLES,), "bool"),
    "colours": ((HANDLES,), "int64"),
    "target": ((), "int64"),
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlowDataset:
    """A data set of N states.

    images `[N, 96, 96, 3]`; tool `[N, 7]`, the pose of the tool (position, quaternion); aperture `[N]`; per handle:
    grasps `[N, 3, 7]`, the poses from which the gripper closes, pixels `[N, 3, 2]`, visible, colours (indices into
    COLOURS) `[N, 3]`; target `[N]`, the handle around which the state was drawn.
    """

    images: NDArray[np.uint8]
    tool: NDArray[np.float64]
    aperture: NDArray[np.float32]
    grasps: NDArray[np.float64]
    pixels: NDArray[np.float32]
    visible: NDArray[np.bool_]
    colours: NDArray[np.int64]
    target: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target)


def make_flow_dataset(
    folder: Path, count: int, seed: int, advance: Callable[[int], None], workers: int | None = None
) -> FlowDataset:
    """Render those of `count` states (rounded up to whole chunks) that are missing; read all into memory."""
    render(folder, count, seed, advance, columns=COLUMNS, source=FlowStudio, workers=workers)
    return FlowDataset(**read_columns(folder, COLUMNS, mapped=()))


class FlowStudio(Studio):
    """Draws states, with the gripper at a random aperture in some, and renders them."""

    def shoot(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw one row of the data set, by column."""
        state = self._pose(rng)
        aperture = 1.0 if rng.uniform() < OPEN_SHARE else float(rng.uniform())
        self._arm.teleport(state.tool, aperture)
        labels, tool = label(state), self._arm.pose()
        return {
            "images": self._picture(),
            "tool": _flat(tool),
            "aperture": aperture,
            "grasps": [_flat(handle.grasp(0.0)) for handle in state.handles],
            "pixels": labels.pixels,
            "visible": labels.visible,
            "colours": self._colours_of(state),
            "target": state.target,
        }


def _flat(pose: Pose) -> NDArray[np.float64]:
    return np.concatenate([pose.position, pose.wxyz])
