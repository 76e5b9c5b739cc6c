"""Chunks that continue earlier ones: training for real-time chunking (arXiv 2512.05964).

An answer begins with rows of the chunk being played, which it must keep. They come from an older frame, so they do not
lead quite to where this frame shows the goal; the rows behind them make up for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.chunks import continued_chunks, displaced, expert_chunks
from edgeflow_client.pose import Vector

MOST_DELAY: Final = 6  # rows that are kept
FRESH_SHARE: Final = 0.15  # of the chunks keep none
_METRES: Final = (0.001, 0.02)  # spread of the goal of the chunk before, log-uniform
_RADIANS: Final = (0.01, 0.12)


def draw_continued(
    tool: Vector, grasp: Vector, aperture: NDArray[np.floating], rows: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Chunks `[N, rows, 7]` from tool to grasp poses `[N, 7]`, and `[N]`, how many of their first rows are kept ones.

    Those are the expert's motion to a goal nearby. aperture: `[N]`.
    """
    size = len(tool)
    scale = rng.uniform(size=(size, 1))
    metres, radians = (
        low * (high / low) ** scale * rng.standard_normal((size, 3)) for low, high in (_METRES, _RADIANS)
    )
    before = expert_chunks(tool, displaced(grasp, metres, radians), aperture, rows)
    count = np.where(rng.uniform(size=size) < FRESH_SHARE, 0, rng.integers(1, MOST_DELAY + 1, size=size))
    return continued_chunks(tool, grasp, aperture, before, count).astype(np.float32), count
