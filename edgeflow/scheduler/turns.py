"""When chat has its turn beside control, and how much of it: integers only, time is an argument.

Control goes first. A pass of chat begins where it will end before control expects the next frame of any robot, so that
control decodes that frame undisturbed (scheduler/gaps.py).
"""

from __future__ import annotations

from edgeflow.scheduler.cost import ChunkTimes, CostModel, PassSample
from edgeflow.scheduler.gaps import Gaps


class ChatTurns:
    """Chat's room before the next frame. chunk: most rows of a prompt per pass."""

    def __init__(self, gaps: Gaps, times: ChunkTimes, chunk: int) -> None:
        self._gaps = gaps
        self._cost = CostModel(times)
        self._chunk = chunk
        self._free_ns = 0

    def rows(self, now_ns: int, *, idle: bool, pass_at_ns: int | None) -> int:
        """Rows that chat's next pass may have; 0 where it must wait.

        Passes that are launched and not finished come first. idle: control has nothing to run. pass_at_ns: when it
        will have, even if no frame arrives.
        """
        room_ns = self._gaps.room_ns(now_ns, pass_at_ns) - max(self._free_ns - now_ns, 0) if idle else 0
        if room_ns < self._cost.times.step_ns and not self._gaps.must_run(now_ns):
            return 0
        return self._cost.times.rows_in(room_ns, self._chunk)

    def expected_ns(self, prefill_rows: int, decode_rows: int) -> int:
        """The time of a pass of chat, by the cost model."""
        return self._cost.times.pass_ns(prefill_rows, decode_rows)

    def launched(self, now_ns: int, expected_ns: int) -> None:
        """Record that a pass of anyone is launched, behind those that are."""
        self._free_ns = max(self._free_ns, now_ns) + expected_ns

    def finished(self) -> None:
        """Record that no pass is launched and not finished."""
        self._free_ns = 0

    def served(self, now_ns: int, sample: PassSample | None) -> None:
        """Record that a pass of chat ended; sample: None where its time is not known."""
        if sample is None:
            self._gaps.served(now_ns, 0, 0)
        else:
            self._gaps.served(now_ns, self.expected_ns(sample.prefills, sample.decodes), sample.ns)
            if self._cost.observe([sample]):
                self._gaps.forget()
