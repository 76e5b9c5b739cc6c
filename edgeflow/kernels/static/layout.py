"""The rows of a static graph: as many in each sequence, each with its position and what it sees as inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLayout(PackedLayout):
    """seen [B, R, n] bool: the keys that each row sees, of the past and then of the rows; at least one. batch: B."""

    seen_keys: Tensor
    batch: int

    @classmethod
    def over(cls, position: Tensor, seen: Tensor, sampled: Tensor | None = None) -> StaticLayout:
        """position [B, R] int64: of RoPE. sampled [n] int64: rows whose output is wanted, of one sequence; by default
        none."""
        batch, rows = position.shape
        flat = position.flatten()
        return cls(
            lengths=(rows,) * batch,
            reach=seen.shape[2],
            row_slot=flat,
            row_position=flat,
            rope_position=flat[None],
            sampled_rows=flat[:0] if sampled is None else sampled,
            seen_keys=seen,
            batch=batch,
        )

    def of_sampled_rows(self) -> StaticLayout:
        """The sampled rows, which are all of one sequence."""
        sampled = self.sampled_rows
        position = self.row_position[sampled]
        return replace(
            self,
            lengths=(len(sampled),) * self.batch,
            row_slot=position,
            row_position=position,
            rope_position=position[None],
            seen_keys=self.seen_keys[:, sampled],
        )
