"""Attention whose rows see a little more or less than they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from edgeflow.kernels import packed_attention
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.sees import Sees


def changed(change: Callable[[PackedLayout, Sees], Sees]) -> Callable:
    """The reference over rows that see something else, where they are not causal."""

    def wrong(layout, kv):
        sees = layout.sees and change(layout, layout.sees)
        return packed_attention.reference(replace(layout, sees=sees), kv)

    return wrong


def wider_window(layout, sees):
    """One key more at the start of the second range."""
    ranges = sees.ranges.clone()
    ranges[:, 1, 0] -= (ranges[:, 1, 0] > ranges[:, 0, 1]).long()
    return replace(sees, ranges=ranges)


def shorter_window(layout, sees):
    """One key fewer at the end of the second range, where there are several."""
    ranges = sees.ranges.clone()
    ranges[:, 1, 1] -= (ranges[:, 1, 1] > ranges[:, 1, 0] + 1).long()
    return replace(sees, ranges=ranges)


def one_range(layout, sees):
    ranges = sees.ranges.clone()
    ranges[:, 1] = 0
    return replace(sees, ranges=ranges)


def no_sinks(layout, sees):
    """The first range is ignored where there is a second one."""
    ranges = sees.ranges.clone()
    ranges[ranges[:, 1, 1] > 0, 0] = 0
    return replace(sees, ranges=ranges)


def nothing_ahead(layout, sees):
    """No range goes beyond the row itself."""
    return replace(sees, ranges=sees.ranges.minimum(layout.row_position[:, None, None] + 1))


def siblings(layout, sees):
    """Every row of a tree sees all rows before it."""
    if sees.tree is None:
        return sees
    own = layout.row_position - sees.first
    return replace(sees, tree=torch.where(sees.tree == 0, 0, (2 << own) - 1))


def no_bits(layout, sees):
    return Sees(sees.ranges)


def bits_of_the_slot(layout, sees):
    """Bits count from the start of the slot, not of the segment."""
    return sees if sees.tree is None else replace(sees, first=torch.zeros_like(sees.first))


def causal_rows(layout, sees):
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
