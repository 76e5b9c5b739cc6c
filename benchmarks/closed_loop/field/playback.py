"""The arithmetic of other robot clients on the rows of chunks, each from its public description. Pure functions.

Sources: LeRobot's asynchronous inference (huggingface.co/docs/lerobot/async, and src/lerobot/async_inference of 0.6.1),
its remote inference (remote_inference.mdx of its documentation's source, August 2026), and temporal ensembling of ACT
(arXiv 2304.13705).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from edgeflow_client.pose import Vector

AGGREGATES: Final[Mapping[str, float]] = {
    "weighted_average": 0.7,
    "latest_only": 1.0,
    "average": 0.5,
    "conservative": 0.3,
}
"""LeRobot's aggregate functions: the weight of the new row; the queued one has the rest."""
SIMILAR: Final = 1.0  # LeRobot's distance of two joint states, in the robot's units (degrees)
BLEND_STEPS, BLEND_WEIGHT = 5, 0.5  # of LeRobot's example; the weight is the new row's
ENSEMBLE_DECAY: Final = 0.01  # ACT's m


def aggregated(
    queue: Mapping[int, Vector], rows: Sequence[Vector], first: int, *, executed: int, new: float
) -> dict[int, Vector]:
    """LeRobot's queue by timestep after a chunk arrived.

    Only the chunk's timesteps after the executed one remain; those that were queued, too, are averaged. first: timestep
    of row 0. new: weight of the chunk's rows.
    """
    merged: dict[int, Vector] = {}
    for timestep, row in enumerate(rows, first):
        if timestep > executed:
            queued = queue.get(timestep)
            merged[timestep] = row if queued is None else (1.0 - new) * queued + new * row
    return merged


def wants_observation(queued: int, longest: int, threshold: float) -> bool:
    """True if LeRobot's client sends an observation: at most this share of its longest chunk is left."""
    return longest == 0 or queued / longest <= threshold


def similar(joints: Vector, processed: Vector) -> bool:
    """True if LeRobot's server skips an observation, since the joints moved too little after the last processed one."""
    return bool(np.linalg.norm(joints - processed) < SIMILAR)


def blended(old: Sequence[Vector], new: Sequence[Vector], steps: int, untouched: Sequence[int]) -> list[Vector]:
    """The rows of a new chunk, of which the first `steps` that overlap the old future are blended with it.

    Both begin with the same moment. untouched: dimensions that are taken from the new rows, such as the gripper.
    """
    result = list(new)
    for index in range(min(steps, len(old), len(new))):
        row = (1.0 - BLEND_WEIGHT) * old[index] + BLEND_WEIGHT * new[index]
        row[untouched] = new[index][untouched]
        result[index] = row
    return result


def ensembled(predictions: Sequence[Vector]) -> Vector:
    """ACT's average of all predictions for one moment, the oldest first, which has the largest weight."""
    weights = np.exp(-ENSEMBLE_DECAY * np.arange(len(predictions)))
    return np.average(np.stack(predictions), axis=0, weights=weights)
