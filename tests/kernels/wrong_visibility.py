"""Attention whose rows see a little more or less than they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from edgeflow.kernels import packed_attention
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.visibility import Visibility


def changed(change: Callable[[PackedLayout, Visibility], Visibility]) -> Callable:
    """The reference over rows that see something else, where they are not causal."""

    def wrong(layout, kv):
        visibility = layout.visibility and change(layout, layout.visibility)
        return packed_attention.reference(replace(layout, visibility=visibility), kv)

    return wrong


def wider_window(layout, visibility):
    """One key more at the start of the second range."""
    ranges = visibility.ranges.clone()
    ranges[:, 1, 0] -= (ranges[:, 1, 0] > ranges[:, 0, 1]).long()
    return replace(visibility, ranges=ranges)


def shorter_window(layout, visibility):
    """One key fewer at the end of the second range, where there are several."""
    ranges = visibility.ranges.clone()
    ranges[:, 1, 1] -= (ranges[:, 1, 1] > ranges[:, 1, 0] + 1).long()
    return replace(visibility, ranges=ranges)


def one_range(layout, visibility):
    ranges = visibility.ranges.clone()
    ranges[:, 1] = 0
    return replace(visibility, ranges=ranges)


def no_sinks(layout, visibility):
    """The first range is ignored where there is a second one."""
    ranges = visibility.ranges.clone()
    ranges[ranges[:, 1, 1] > 0, 0] = 0
    return replace(visibility, ranges=ranges)


def nothing_ahead(layout, visibility):
    """No range goes beyond the row itself."""
    return replace(visibility, ranges=visibility.ranges.minimum(layout.row_position[:, None, None] + 1))


def siblings(layout, visibility):
    """Every row of a tree sees all rows before it."""
    if visibility.tree is None:
        return visibility
    own = layout.row_position - visibility.first
    return replace(visibility, tree=torch.where(visibility.tree == 0, 0, (2 << own) - 1))


def no_bits(layout, visibility):
    return Visibility(visibility.ranges)


def bits_of_the_slot(layout, visibility):
    """Bits count from the start of the slot, not of the segment."""
    return visibility if visibility.tree is None else replace(visibility, first=torch.zeros_like(visibility.first))


def causal_rows(layout, visibility):
    return None


SIGHTS = {
    "a key more before a window": wider_window,
    "a key fewer": shorter_window,
    "the second range ignored": one_range,
    "the sinks ignored": no_sinks,
    "the prefix not bidirectional": nothing_ahead,
    "siblings seen": siblings,
    "no row of the tree seen": no_bits,
    "bits of the slot": bits_of_the_slot,
    "all rows causal": causal_rows,
}
