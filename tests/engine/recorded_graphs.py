"""A CUDA graph's stand-in on a CPU: every operator call of a program is recorded and repeated on the same memory.

As in a CUDA graph, numbers chosen by the host are part of the calls and tensors are addresses. Memory allocated while
recording belongs to the recording (a graph's pool); memory that existed before is not kept alive, and a replay that
would read or write it after it was freed fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

READS_ON_THE_HOST = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique", "masked_select")


class FreedMemoryError(Exception):
    """A replay addresses memory that nothing kept alive."""


@dataclass(frozen=True)
class _Address:
    """Where a tensor lies; the memory may be gone."""

    storage: StorageWeakRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> _Address:
        storage = StorageWeakRef(tensor.untyped_storage())
        return cls(storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise FreedMemoryError(f"a tensor {list(self.shape)} of {self.dtype} was freed before the replay")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.strides)


class _Recorder(TorchDispatchMode):
    """calls: function, arguments and results of each call; tensors allocated before the recording are addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []
        self._outside: dict[int, StorageWeakRef] = {}
        self._pool: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert not name.startswith(READS_ON_THE_HOST), f"{name} waits for the device"
        given = _storages((args, kwargs))
        for storage in given:
            if storage._cdata not in self._pool:
                self._outside[storage._cdata] = StorageWeakRef(storage)  # which also keeps the identity from reuse
        result = function(*args, **(kwargs or {}))
        made = {storage._cdata for storage in _storages(result)}
        if function.is_view and made <= {storage._cdata for storage in given}:
            return result  # nothing is computed: whoever reads it has its address
        self._pool |= {each for each in made if each not in self._outside}
        places = tree_map_only(Tensor, self._place, (args, kwargs or {}, _tensors(result)))
        self.calls.append((function, *places))
        return result

    def _place(self, tensor: Tensor) -> Tensor | _Address:
        if tensor.is_mkldnn:  # a weight in oneDNN's own layout, which has no address
            return tensor
        return tensor if tensor.untyped_storage()._cdata in self._pool else _Address.of(tensor)


def record(program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """A Record (engine/graphs.py)."""
    program()  # a warm-up
    recorder = _Recorder()
    with recorder:
        outputs = program()

    calls = [_Call.of(*call) for call in recorder.calls]

    def replay() -> None:
        known: dict[_Address, Tensor] = {}
        for call in calls:
            call.repeat(known)

    return replay, outputs


class Replays:
    """A Record that counts replays."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        repeat, outputs = record(program)

        def replay() -> None:
            self.count += 1
            repeat()

        return replay, outputs


@dataclass(frozen=True)
class _Call:
    """leaves: of arguments and results, as `tree` holds them. addresses: where leaves are addresses."""

    function: Any
    tree: TreeSpec
    leaves: tuple[Any, ...]
    addresses: tuple[int, ...]

    @classmethod
    def of(cls, function: Any, *places: Any) -> _Call:
        leaves, tree = tree_flatten(places)
        addresses = (at for at, leaf in enumerate(leaves) if isinstance(leaf, _Address))
        return cls(function, tree, tuple(leaves), tuple(addresses))

    def repeat(self, known: dict[_Address, Tensor]) -> None:
        """known: tensors of this replay."""
        leaves = list(self.leaves)
        for at in self.addresses:
            place = leaves[at]
            if place not in known:
                known[place] = place.tensor()
            leaves[at] = known[place]
        args, kwargs, results = tree_unflatten(leaves, self.tree)
        returned = self.function(*args, **kwargs)
        for result, now in zip(
            results, [returned] if isinstance(returned, Tensor) else _tensors(returned), strict=True
        ):
            if now.untyped_storage().data_ptr() != result.untyped_storage().data_ptr():
                result.copy_(now)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in _tensors(tree) if not tensor.is_mkldnn]
