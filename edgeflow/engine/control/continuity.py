"""The last chunks of a session, and what the robot will play of them from the capture of a new frame on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow.ipc.messages import SubmitFrame
from edgeflow.trajectory import ChunkReport, Seam

KEPT_CHUNKS = 32
HISTORY = 3  # rows that the limits of a motion look back on
FRESH = ChunkReport()
MOST_APART = 1  # rows between what the robot says and what its stamps say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What is played from the row that is due at the capture of a frame: the chunk being played then, and from their
    arrival on the newer answers that are on their way.

    seq: the frame that the last of these chunks answers, which is played when the new answer arrives. delay: rows that
    will have passed by then; there are at least as many. actions: [n, D] in the units of the schema, as they were sent;
    before: [up to HISTORY, D], the rows before them. values: [n, D] normalised, as the policy gave them; None where it
    gave tokens.
    """

    seq: int
    delay: int
    actions: NDArray[np.float64]
    before: NDArray[np.float64]
    values: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """An answer. continues: as in its report. fits_ns: until when it fits on the robot's clock; None = always."""

    seq: int
    stamp_ns: int
    actions: NDArray[np.float64]
    values: NDArray[np.float64] | None
    continues: int
    fits_ns: int | None


class Continuity:
    """The last KEPT_CHUNKS chunks of a session, of one epoch. step_ns: between rows."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._epoch = 0
        self._kept: dict[int, _Kept] = {}

    def keep(
        self,
        message: SubmitFrame,
        actions: NDArray[np.float64],
        values: NDArray[np.float64] | None = None,
        report: ChunkReport = FRESH,
    ) -> None:
        """Keep a copy of the answer to a frame. values: more rows and numbers than the actions have are left out."""
        self._enter(message.epoch)
        fits_ns = message.stamp_ns + report.conditioned_steps * self._step_ns if report.continues else None
        rows, dims = actions.shape
        values = None if values is None else values[:rows, :dims].copy()
        kept = _Kept(message.seq, message.stamp_ns, actions.copy(), values, report.continues, fits_ns)
        self._kept[message.seq] = kept
        if len(self._kept) > KEPT_CHUNKS:
            del self._kept[next(iter(self._kept))]

    def forget(self) -> None:
        """Forget all chunks: a new epoch begins."""
        self._kept.clear()

    def plan(self, message: SubmitFrame) -> tuple[Plan | None, Seam]:
        """What the robot will play from the capture of a frame on; None with the reason why that is not known.

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
        row = self._row(kept, message)
        if abs(min(row, len(kept.actions) - 1) - playing.step) > MOST_APART or row < 0:
            return None, Seam.APART
        delay = self.delay(message)
        parts = self._parts(kept, message)
        actions = np.concatenate([each.actions[rows] for each, rows in parts])
        if len(actions) < max(delay, 1):
            return None, Seam.OVER
        latents = [each.values[rows] for each, rows in parts if each.values is not None]
        values = np.concatenate(latents) if len(latents) == len(parts) else None
        before = kept.actions[max(row - HISTORY, 0) : row]
        return Plan(seq=parts[-1][0].seq, delay=delay, actions=actions, before=before, values=values), Seam.CONTINUED

    def delay(self, message: SubmitFrame) -> int:
        """The rows that will have passed when the answer to a frame is played."""
        return -(-message.delay_ns // self._step_ns)

    def _parts(self, playing: _Kept, message: SubmitFrame) -> list[tuple[_Kept, slice]]:
        """The chunks that are played from the capture on, with the rows of each; the last one to its end."""
        parts, begun = [], 0
        for newer in self._on_their_way(playing, message):
            row, arrived = self._row(playing, message), self._arrival(newer, message)
            until = min(max(arrived, begun), max(len(playing.actions) - row, begun))
            parts.append((playing, slice(row + begun, row + until)))
            playing, begun = newer, until
        parts.append((playing, slice(self._row(playing, message) + begun, None)))
        return parts

    def _on_their_way(self, playing: _Kept, message: SubmitFrame) -> list[_Kept]:
        """The answers that arrive between the capture of a frame and its own answer, and fit what is played then.

        One that should have arrived before the capture never will, or too late to fit.
        """
        found = []
        for each in sorted(self._kept.values(), key=lambda kept: kept.seq):
            older = each.seq < message.seq and each.stamp_ns <= message.stamp_ns
            if each.seq <= playing.seq or not older or each.continues not in (0, playing.seq):
                continue
            until_ns = each.stamp_ns + message.delay_ns + self._step_ns if each.fits_ns is None else each.fits_ns
            if message.stamp_ns <= until_ns:
                found.append(each)
                playing = each
        return found

    def _row(self, kept: _Kept, message: SubmitFrame) -> int:
        """The row of a chunk that is due at the capture of a frame, to the nearest."""
        return (2 * (message.stamp_ns - kept.stamp_ns) + self._step_ns) // (2 * self._step_ns)

    def _arrival(self, kept: _Kept, message: SubmitFrame) -> int:
        """The rows after the capture of a frame that will have passed when an older one's answer arrives."""
        arrived_ns = kept.stamp_ns + message.delay_ns
        if kept.fits_ns is not None:
            arrived_ns = min(arrived_ns, kept.fits_ns)
        return max(-(-(arrived_ns - message.stamp_ns) // self._step_ns), 0)

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._kept.clear()
            self._epoch = epoch
