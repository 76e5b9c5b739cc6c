"""The trees in which the drafts of each slot stand, on the device.

Row 0 of a verification is the newest token, the root; every other row is a draft and follows an earlier row.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DraftTrees:
    """parent [S, R]: the row that each follows, 0 of the root. depth [S, R]: rows before it on its path. bits [S, R]:
    int64; bit j of row i is set where row j is on the path to row i, itself included. All int64.
    """

    def __init__(self, slots: int, rows: int, device: torch.device) -> None:
        self.parent = torch.zeros(slots, rows, dtype=torch.long, device=device)
        self.depth = torch.zeros_like(self.parent)
        self.bits = torch.ones_like(self.parent)

    def plant(self, slots: Tensor, parents: Tensor, levels: int) -> None:
        """Trees for slots [N]. parents [N, r - 1], r at most R: the row that each draft follows. levels: the most that
        are deep.
        """
        row = torch.arange(parents.shape[1] + 1, device=parents.device).expand(len(parents), -1)
        parent = torch.cat([torch.zeros_like(parents[:, :1]), parents], dim=1)
        here, depth, bits = row, torch.zeros_like(parent), torch.ones_like(parent) << row
        for _ in range(levels):
            depth = depth + (here > 0)
            here = parent.gather(1, here)
            bits = bits | (torch.ones_like(here) << here)
        for state, values in ((self.parent, parent), (self.depth, depth), (self.bits, bits)):
            state[slots, : values.shape[1]] = values
