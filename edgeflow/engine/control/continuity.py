"""The last chunks of a session, and what is left of the one that the robot plays when a new frame is captured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow.ipc.messages import SubmitFrame
from edgeflow.trajectory import Seam

KEPT_CHUNKS = 32
HISTORY = 3  # rows that the limits of a motion look back on
MOST_APART = 1  # rows between what the robot says and what its stamps say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The chunk being played, from the row that is due at the capture of a frame.

    seq: the frame that it answers. delay: rows that will have passed when the new answer is played; the chunk has at
    least as many left. actions: [n, D] in the units of the schema, as they were sent; before: [up to HISTORY, D], the
    rows before them. values: [n, A] normalised, as the policy gave them; None where it gave tokens.
    """

    seq: int
    delay: int
    actions: NDArray[np.float64]
    before: NDArray[np.float64]
    values: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    stamp_ns: int
    actions: NDArray[np.float64]
    values: NDArray[np.float64] | None


class Continuity:
    """The last KEPT_CHUNKS chunks of a session, of one epoch. step_ns: between rows."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._epoch = 0
        self._kept: dict[int, _Kept] = {}

    def keep(
        self, message: SubmitFrame, actions: NDArray[np.float64], values: NDArray[np.float64] | None = None
    ) -> None:
        """Keep the answer to a frame. values: more rows than the actions have are left out."""
        self._enter(message.epoch)
        kept = _Kept(message.stamp_ns, actions, None if values is None else values[: len(actions)])
        self._kept[message.seq] = kept
        if len(self._kept) > KEPT_CHUNKS:
            del self._kept[next(iter(self._kept))]

    def forget(self) -> None:
        """Forget all chunks: a new epoch begins."""
        self._kept.clear()

    def plan(self, message: SubmitFrame) -> tuple[Plan | None, Seam]:
        """The rest of the chunk that the robot plays at the capture of a frame; None with the reason why there is none.

        The row that is due follows from the stamps, to the nearest; the robot's own count, which is rounded down, must
        be at most MOST_APART rows from it. Where it is not, neither is believed.
        """
        self._enter(message.epoch)
        playing = message.playing
        if playing is None or not message.delay_ns:
            return None, Seam.NONE
        kept = self._kept.get(playing.seq)
        if kept is None:
            return None, Seam.FORGOTTEN
        passed_ns, horizon = message.stamp_ns - kept.stamp_ns, len(kept.actions)
        row = (2 * passed_ns + self._step_ns) // (2 * self._step_ns)
        if abs(min(row, horizon - 1) - playing.step) > MOST_APART or row < 0:
            return None, Seam.APART
        delay = -(-message.delay_ns // self._step_ns)
        if horizon - row < max(delay, 1):
            return None, Seam.OVER
        values = None if kept.values is None else kept.values[row:]
        before = kept.actions[max(row - HISTORY, 0) : row]
        plan = Plan(seq=playing.seq, delay=delay, actions=kept.actions[row:], before=before, values=values)
        return plan, Seam.CONTINUED

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._kept.clear()
            self._epoch = epoch
