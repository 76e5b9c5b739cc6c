"""What a CUDA graph does, on a CPU: every operator call of a program is recorded and called again on the same memory.

Numbers that the host chose are part of the calls, tensors are addresses: whatever differs between replays must have
been written into them before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS_ON_THE_HOST = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique", "masked_select")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert not name.startswith(READS_ON_THE_HOST), f"{name} waits for the device"
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, _tensors(result)))
        return result


def record(program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """A Record (engine/graphs.py)."""
    program()  # a warm-up
    recorder = _Recorder()
    with recorder:
        outputs = program()

    def replay() -> None:
        for function, args, kwargs, results in recorder.calls:
            fresh = _tensors(function(*args, **kwargs))
            for result, now in zip(results, fresh, strict=True):
                if now.untyped_storage().data_ptr() != result.untyped_storage().data_ptr():
                    result.copy_(now)

    return replay, outputs


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
