"""The last chunks of a session, and their rows that the robot will execute from the capture of a new frame on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeflow.ipc.messages import SubmitFrame
from edgeflow.scheduler.execution import FULL_RATE
from edgeflow_client.trajectory import ChunkReport, Seam

KEPT_CHUNKS = 32
HISTORY = 3  # rows that the limits of a motion look back on
FRESH = ChunkReport()
MOST_APART = 1  # rows between the robot's own count and what the stamps give


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutedRows:
    """The rows that are executed from the one on that is due at the capture of a frame: those of the chunk in
    execution then, and from their arrival on those of the newer answers on their way.
    """

    seq: int
    """The frame that the last of these chunks answers, which is executed when the new answer arrives."""
    delay: int
    """Rows that will have passed by then; `actions` has at least as many."""
    actions: NDArray[np.float64]
    """[n, D] in the units of the schema, as they were sent."""
    before: NDArray[np.float64]
    """[up to HISTORY, D], the rows before them."""
    values: NDArray[np.float64] | None = None
    """[n, D] normalised, as the policy gave them; None where it gave tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _KeptAnswer:
    """A chunk that was sent."""

    seq: int
    stamp_ns: int
    start_ns: int | None
    """The moment of its first row on the robot's clock; None until the robot says when the answer arrived."""
    step_ns: int
    """Time between rows as they are executed."""
    actions: NDArray[np.float64]
    values: NDArray[np.float64] | None
    continues: int
    """The frame whose chunk it continues, 0 for none (ChunkReport)."""
    fits_ns: int | None
    """The latest moment, on the robot's clock, at which it can be joined; None = any time."""


class Continuity:
    """The last KEPT_CHUNKS chunks of a session, of one epoch. step_ns: time between rows at the full rate."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._epoch = 0
        self._kept: dict[int, _KeptAnswer] = {}

    def keep(
        self,
        message: SubmitFrame,
        actions: NDArray[np.float64],
        values: NDArray[np.float64] | None = None,
        report: ChunkReport = FRESH,
    ) -> None:
        """Keep a copy of the answer to a frame. values: more rows and numbers than the actions have are left out."""
        self._enter(message.epoch)
        step_ns = self._step_of(message)
        fits_ns = message.stamp_ns + report.conditioned_steps * step_ns if report.continues else None
        rows, dims = actions.shape
        values = None if values is None else values[:rows, :dims].copy()
        self._kept[message.seq] = _KeptAnswer(
            seq=message.seq,
            stamp_ns=message.stamp_ns,
            start_ns=None if message.start_delay_ns else message.stamp_ns,
            step_ns=step_ns,
            actions=actions.copy(),
            values=values,
            continues=report.continues,
            fits_ns=fits_ns,
        )
        if len(self._kept) > KEPT_CHUNKS:
            del self._kept[next(iter(self._kept))]

    def forget(self) -> None:
        """Forget all chunks: a new epoch begins."""
        self._kept.clear()

    def plan(self, message: SubmitFrame) -> tuple[ExecutedRows | None, Seam]:
        """The rows that the robot will execute from the capture of a frame on; None, with the reason, where they are
        not known.

        The row that is due follows from the stamps, to the nearest; the robot's own count, which is rounded down, must
        be at most MOST_APART rows from it. Otherwise neither is trusted.
        """
        self._enter(message.epoch)
        playing = message.playing
        if not message.delay_ns or playing is None:
            return None, Seam.NONE
        kept = self._kept.get(playing.seq)
        if kept is not None and playing.start_ns:
            kept = self._kept[playing.seq] = replace(kept, start_ns=playing.start_ns)
        if kept is None or kept.start_ns is None:
            return None, Seam.FORGOTTEN
        row = self._row(kept, message)
        last = len(kept.actions) - 1
        # Stamps and the robot's count are two witnesses of the same row: where they disagree, neither is trusted.
        if row < 0 or abs(min(row, last) - playing.step) > MOST_APART:
            return None, Seam.APART
        delay = self.delay(message)
        # The rows to execute may come from several chunks: newer answers take over on their way, one after the other.
        parts = self._parts(kept, message)
        actions = np.concatenate([each.actions[rows] for each, rows in parts])
        if len(actions) < max(delay, 1):
            return None, Seam.OVER
        # Guidance needs normalised values of every row; one chunk of tokens among the parts has none.
        latents = [each.values[rows] for each, rows in parts if each.values is not None]
        values = np.concatenate(latents) if len(latents) == len(parts) else None
        before = kept.actions[max(row - HISTORY, 0) : row]
        return ExecutedRows(
            seq=parts[-1][0].seq, delay=delay, actions=actions, before=before, values=values
        ), Seam.CONTINUED

    def delay(self, message: SubmitFrame) -> int:
        """The rows that will have passed when the answer to a frame is executed."""
        return -(-message.delay_ns // self._step_of(message))

    def _step_of(self, message: SubmitFrame) -> int:
        """The time between the rows of its answer as they are executed."""
        return self._step_ns * FULL_RATE // message.rate_percent

    def _parts(self, playing: _KeptAnswer, message: SubmitFrame) -> list[tuple[_KeptAnswer, slice]]:
        """The chunks that are executed from the capture on, with the rows of each; the last one to its end."""
        parts, begun = [], 0
        for newer in self._on_their_way(playing, message):
            row, arrived = self._row(playing, message), self._arrival(newer, message)
            until = min(max(arrived, begun), max(len(playing.actions) - row, begun))
            parts.append((playing, slice(row + begun, row + until)))
            playing, begun = newer, until
        parts.append((playing, slice(self._row(playing, message) + begun, None)))
        return parts

    def _on_their_way(self, playing: _KeptAnswer, message: SubmitFrame) -> list[_KeptAnswer]:
        """The answers that arrive between the capture of a frame and its own answer, and fit the rows in execution
        then.

        An answer that should have arrived before the capture is lost, or too late to fit.
        """
        found = []
        for each in self._unarrived(message):
            if each.seq > playing.seq and each.continues in (0, playing.seq):
                found.append(each)
                playing = each
        return found

    def _unarrived(self, message: SubmitFrame) -> list[_KeptAnswer]:
        """The answers to older frames that may arrive and fit after the capture of a frame, the oldest first."""
        found = []
        for each in sorted(self._kept.values(), key=lambda kept: kept.seq):
            until_ns = each.stamp_ns + message.delay_ns + each.step_ns if each.fits_ns is None else each.fits_ns
            if each.start_ns is None:  # it begins when the robot says that it arrived
                continue
            if each.seq < message.seq and each.stamp_ns <= message.stamp_ns <= until_ns:
                found.append(each)
        return found

    def _row(self, kept: _KeptAnswer, message: SubmitFrame) -> int:
        """The row of a chunk that is due at the capture of a frame, to the nearest."""
        start_ns = kept.stamp_ns if kept.start_ns is None else kept.start_ns
        return (2 * (message.stamp_ns - start_ns) + kept.step_ns) // (2 * kept.step_ns)

    def _arrival(self, kept: _KeptAnswer, message: SubmitFrame) -> int:
        """The rows after the capture of a frame that will have passed when an older one's answer arrives."""
        arrived_ns = kept.stamp_ns + message.delay_ns
        if kept.fits_ns is not None:
            arrived_ns = min(arrived_ns, kept.fits_ns)
        return max(-(-(arrived_ns - message.stamp_ns) // kept.step_ns), 0)

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._kept.clear()
            self._epoch = epoch
