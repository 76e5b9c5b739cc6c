"""The kinds of drafts that a chat engine can make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgeflow.engine.drafts.drafter import Drafter
from edgeflow.engine.drafts.eagle import EagleDrafter
from edgeflow.engine.drafts.lookup import LookupDrafter
from edgeflow.engine.drafts.sizes import DraftSizes, chain_of, eagle_sizes, lookup_sizes
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.models.eagle3.growing import TreeSizes
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.scheduler.plan import DraftForm


class DraftKind(Protocol):
    """How drafts are made. name: as in `chat.draft`. form: of requests that no grammar binds; those are chains. rows:
    the most of a verification, the newest token included.
    """

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> DraftForm: ...

    @property
    def rows(self) -> int: ...

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        """A drafter for the slots of an engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Prompt look-up; the numbers are those of `LookupDrafter`."""

    drafts: int = 8
    shortest: int = 1
    longest: int = 4
    name: str = "lookup"

    @property
    def form(self) -> DraftForm:
        return DraftForm.CHAIN

    @property
    def rows(self) -> int:
        return self.sizes.most_rows

    @property
    def sizes(self) -> DraftSizes:
        return lookup_sizes(self.drafts)

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:  # noqa: ARG002 - alike for all
        return LookupDrafter(state, drafts=self.drafts, shortest=self.shortest, longest=self.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle:
    """An EAGLE-3 head. tree: the sizes of its trees; None to draft chains alone, of depth + 1 tokens."""

    head: Eagle3Head
    tree: TreeSizes | None
    depth: int
    name: str = "eagle3"

    @property
    def form(self) -> DraftForm:
        return DraftForm.CHAIN if self.tree is None else DraftForm.TREE

    @property
    def chain(self) -> TreeSizes:
        """The sizes of its chains."""
        return chain_of(self.depth)

    @property
    def rows(self) -> int:
        return self.sizes.most_rows

    @property
    def sizes(self) -> DraftSizes:
        return eagle_sizes(self.head.config, self.tree, self.depth)

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        sizes = {DraftForm.CHAIN: self.chain}
        if self.tree is not None:
            sizes[DraftForm.TREE] = self.tree
        behind = self.sizes.behind
        capacity = rounded_capacity(kv.capacity + behind)
        store = self.head.kv_slots(kv.slots, capacity, kv.format.turned(kv.capacity) + capacity - kv.capacity)
        return EagleDrafter(self.head, store, state, sizes)


def sizes_of(kind: DraftKind | None) -> DraftSizes | None:
    """The sizes by which a kind takes memory; None without drafts."""
    if isinstance(kind, (Eagle, Lookup)):
        return kind.sizes
    return None if kind is None else DraftSizes(rows={kind.form: kind.rows})
