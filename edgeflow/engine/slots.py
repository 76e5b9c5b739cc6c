"""The state of each slot on the device, besides its keys and values, and folds in slots with memory."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.engine.sampling.sample import SamplingState
from edgeflow.kernels.kv.memory import FoldMemory
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import DraftTrees
from edgeflow.scheduler.plan import Before


class SlotState:
    """Tensors that passes read and write by slot, so that the host can plan a pass before it knows the last one's
    results.

    length [S]: positions that hold the sequence's KV. ids [S, T + R]: the token of each position; the one at `length`
    enters next, those after it are drafts. answer [S]: position of the first token after a prompt with drafts.
    shift [S]: RoPE position of a row after the prompt, less its place. folded [S]: tokens that have left the slot for
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

    def drawn(self, slots: Tensor, places: Tensor) -> Tensor:
        """The positions in their sequences of the tokens that enter these slots at these places."""
        return places if self.folded is None else places + self.folded[slots]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Slots `source` enter slots `target` [M], all at once."""
        for state in (self.length, self.ids, self.answer, self.shift, self.folded):
            if state is not None:
                state[target] = state[source]


class SlotMemory:
    """The memories of a store's slots. Everything is enqueued; nothing waits for the device.

    fold: the operator. follower: another store with a place for each of `kv` and without a memory, which loses folded
    tokens.
    """

    def __init__(self, kv: KVSlots, state: SlotState, fold: FoldMemory, follower: KVSlots | None = None) -> None:
        if kv.format.memory is None or state.folded is None:
            raise ValueError("slots without memory have nothing to fold into")
        self._kv, self._state, self._fold = kv, state, fold
        self._stores = [each.data for each in (kv, follower) if each is not None]
        self._rules = kv.format.memory
        self._folded: Tensor = state.folded

    def clear(self, slot: int) -> None:
        """Forget the sequence of a slot."""
        _, *memories = self._kv.tensors
        for each in memories:
            each[:, :, slot] = 0
        self._folded[slot] = 0
        self._state.length[slot] = 0

    def finite(self, slot: int) -> bool:
        """True where a slot's memory and the keys and values that it holds are finite. Waits for the device."""
        pairs, *memories = self._kv.tensors
        held = [pairs[:, :, slot, : int(self._state.length[slot])], *(each[:, :, slot] for each in memories)]
        return all(bool(each.isfinite().all()) for each in held)

    def change(self, slot: int, before: Before) -> None:
        """Change a slot as a segment requires before its rows run."""
        sink, stop = self._rules.sink, self._rules.sink + self._rules.segment
        if before in (Before.FOLD, Before.FOLD_KEEPING):
            first = 0 if self._rules.with_sink else sink
            for index in range(len(self._kv.data)):
                self._fold(self._kv.layer(index), slot, first, stop)
            self._folded[slot] += stop - sink
            _move_up(self._state.ids[slot], sink, stop)
        if before is Before.FOLD_KEEPING:
            for data in self._stores:
                for pairs in data.flatten(0, 1).unbind():
                    _move_up(pairs[slot], sink, stop)
            self._state.length[slot] -= stop - sink
        elif before is not Before.NOTHING:
            self._state.length[slot] = sink


def _move_up(lines: Tensor, target: int, source: int) -> None:
    rest = lines[source:].clone()
    lines[target : target + len(rest)] = rest
