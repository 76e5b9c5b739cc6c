"""Folds in slots with memory: what happens to keys, values and state of a slot before a segment's rows run."""

from __future__ import annotations

from torch import Tensor

from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.memory import FoldMemory
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.scheduler.plan import Before


class SlotMemory:
    """The memories of a store's slots. Everything is enqueued; nothing waits for the device.

    fold: the operator. follower: another store with a place for each of `kv`, which has no memory: what is folded is
    lost there.
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
        """Do what a segment asks for before its rows run."""
        sink, stop = self._rules.sink, self._rules.sink + self._rules.segment
        if before in (Before.FOLD, Before.FOLD_KEEPING):
            self._add(slot, 0 if self._rules.with_sink else sink, stop)
            self._folded[slot] += stop - sink
            _move_up(self._state.ids[slot], sink, stop)
        if before is Before.FOLD_KEEPING:
            for data in self._stores:
                for pairs in data.flatten(0, 1).unbind():
                    _move_up(pairs[slot], sink, stop)
            self._state.length[slot] -= stop - sink
        elif before is not Before.NOTHING:
            self._state.length[slot] = sink

    def _add(self, slot: int, first: int, stop: int) -> None:
        for index in range(len(self._kv.data)):
            self._fold(self._kv.layer(index), slot, first, stop)


def _move_up(lines: Tensor, target: int, source: int) -> None:
    """Move the lines from `source` onwards to `target`."""
    rest = lines[source:].clone()
    lines[target : target + len(rest)] = rest
