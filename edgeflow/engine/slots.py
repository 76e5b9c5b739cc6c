"""The state of each slot on the device, besides its keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.engine.sampling.sample import SamplingState
from edgeflow.kernels.kv.sees import DraftTrees
from edgeflow.kernels.kv.slots import KVSlots


class SlotState:
    """Numbers that passes read and write by slot: the host may plan a pass before it knows what the last one gave.

    length [S]: positions that hold the sequence's KV. ids [S, T + R]: the token of each position; the one at `length`
    enters next, those behind it are drafts. answer [S]: position of the first token behind a prompt with drafts.
    shift [S]: RoPE position of a row behind the prompt, less its place. folded [S]: tokens that have left the slot for
    its memory; None where slots have none. tree: how drafts stand, where they do so in trees.
    sampling: parameters of the requests in the slots; None where all tokens are the greedy ones. rows: R, most rows of
    a verification by a drafter, the newest token included.
    """

    def __init__(self, kv: KVSlots, sampling: SamplingState | None = None, rows: int = 1) -> None:
        device = kv.data.device
        self.sampling = sampling
        self.tree = DraftTrees(kv.slots, rows, device)
        self.length = torch.zeros(kv.slots, dtype=torch.long, device=device)
        self.ids = torch.zeros(kv.slots, kv.capacity + rows, dtype=torch.long, device=device)
        self.answer = torch.zeros(kv.slots, dtype=torch.long, device=device)
        self.shift = torch.zeros(kv.slots, dtype=torch.long, device=device)
        self.folded = None if kv.format.memory is None else torch.zeros_like(self.shift)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Slots `source` enter slots `target` [M], all at once."""
        for state in (self.length, self.ids, self.answer, self.shift, self.folded):
            if state is not None:
                state[target] = state[source]
