"""The interface between the executor and who verifies drafts: what a pass ran, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from edgeflow.engine.sampling.sample import SamplingKind
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.scheduler.plan import DraftForm


@dataclass(frozen=True, slots=True, kw_only=True)
class RanRows:
    """The rows of a pass behind its forward pass, of sequences with drafts.

    slots [S]; counts [S]: rows of each segment, without padding; they are part of the slot's length already. lengths:
    with padding, on the host. form: of all segments. reach: a bound on where they end, on the host. verifies: every row
    of each segment is sampled, and all segments are of one length; otherwise the last row of each is. stage: of the
    pass. logits: of the sampled rows [n, V], None where nothing is sampled. features, rope, on_host: as of `ReadRows`.
    """

    slots: Tensor
    counts: Tensor
    lengths: tuple[int, ...]
    form: DraftForm
    reach: int
    verifies: bool
    stage: str
    logits: Tensor | None
    features: Tensor | None
    rope: Tensor
    on_host: bool


class Verifier(Protocol):
    """Settles tokens behind the forward pass, and makes drafts for the next one.

    taps: layers of the decoder whose input it reads. store: keys and values of the drafter, which follow those of the
    slots; None where it has none.
    """

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def store(self) -> KVSlots | None: ...

    def settle(self, ran: RanRows, kind: SamplingKind, allowed: Tensor | None = None) -> Tensor | None:
        """Sample, and accept what drafts are right; the slots' lengths and tokens are then those of what is settled.

        allowed [n, V]: what a grammar permits; fewer rows than are sampled where it forbids a draft. Returns the lines
        of outcomes.py, None where nothing is sampled.
        """
        ...
