"""Chunks that continue earlier ones: training for real-time chunking.

Guidance holds the first rows of a chunk to rows that are being played. They come from an older frame, so they do not
lead quite to where this frame shows the goal; the rows after them have to make up for it. So part of the training's
chunks begin with rows of a plan from a pose nearby, and continue with the expert's motion from where those lead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.client.pose import Vector
from edgeflow.demo.flow_training.chunks import continued_chunks, expert_chunks, offset_poses

SHARE: Final = 0.4  # of the chunks
MOST_ROWS: Final = 6  # given
METRES: Final = (0.001, 0.015)  # spread of the pose from which the older plan began, log-uniform
RADIANS: Final = (0.01, 0.12)


def draw_chunks(
    tool: Vector, grasp: Vector, aperture: NDArray[np.floating], rows: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """The expert's chunks `[N, rows, 7]` from tool poses to grasp poses `[N, 7]`; SHARE of them have given rows."""
    size = len(tool)
    scale = rng.uniform(size=(size, 1))
    metres, radians = (low * (high / low) ** scale * rng.standard_normal((size, 3)) for low, high in (METRES, RADIANS))
    older = expert_chunks(offset_poses(tool, metres, radians), grasp, aperture, rows)
    count = np.where(rng.uniform(size=size) < SHARE, rng.integers(1, MOST_ROWS + 1, size=size), 0)
    return continued_chunks(tool, grasp, aperture, older, count).astype(np.float32)
