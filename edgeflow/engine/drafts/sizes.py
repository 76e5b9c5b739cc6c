"""The sizes by which drafts take memory, known before any weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.growing import TreeSizes
from edgeflow.scheduler.plan import DraftForm


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSizes:
    """rows: of a verification in each form that requests may have. head: of EAGLE-3; None without one, and then there
    is nothing else. behind: places of the head's slots beyond those of the base's. width: rows of its forwards while a
    tree grows.
    """

    rows: Mapping[DraftForm, int]
    head: Eagle3Config | None = None
    behind: int = 0
    width: int = 0

    @property
    def most_rows(self) -> int:
        return max(self.rows.values())


def chain_of(depth: int) -> TreeSizes:
    """A chain of depth + 1 drafts."""
    return TreeSizes(rows=depth + 2, depth=depth, width=1)


def lookup_sizes(drafts: int) -> DraftSizes:
    """The sizes of prompt look-up."""
    return DraftSizes(rows={DraftForm.CHAIN: 1 + drafts})


def eagle_sizes(head: Eagle3Config, tree: TreeSizes | None, depth: int) -> DraftSizes:
    """The sizes of an EAGLE-3 head's drafts. tree, depth: as of `kinds.Eagle`."""
    grown = {DraftForm.CHAIN: chain_of(depth), **({DraftForm.TREE: tree} if tree else {})}
    return DraftSizes(
        rows={form: sizes.rows for form, sizes in grown.items()},
        head=head,
        behind=max(sizes.places for sizes in grown.values()) + depth + 2,
        width=max(sizes.width for sizes in grown.values()),
    )
