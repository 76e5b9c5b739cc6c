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
from torch.utils._pytree import tree_leaves, tree_map_only

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
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._pool:
                self._outside[storage._cdata] = StorageWeakRef(storage)  # which also keeps the identity from reuse
        result = function(*args, **(kwargs or {}))
        self._pool |= {storage._cdata for storage in _storages(result) if storage._cdata not in self._outside}
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

    def replay() -> None:
        for function, args, kwargs, places in recorder.calls:
            args, kwargs, results = tree_map_only(_Address, _Address.tensor, (args, kwargs, places))
            for result, now in zip(results, _tensors(function(*args, **kwargs)), strict=True):
                if now.untyped_storage().data_ptr() != result.untyped_storage().data_ptr():
                    result.copy_(now)

    return replay, outputs


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in _tensors(tree) if not tensor.is_mkldnn]
