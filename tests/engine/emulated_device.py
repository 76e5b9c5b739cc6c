"""A device beside the CPU, emulated: tensors that call themselves `meta` and hold their values in hidden CPU tensors.

An operation that mixes them with CPU tensors fails as it would with CUDA: what runs here has its tensors on the device
that was named. `computed` lists the operations that ran on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

OTHER = torch.device("meta")
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default, aten.to.device, aten.to.dtype_layout)  # between devices
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)  # CUDA takes indices of the CPU


class EmulatedTensor(Tensor):
    """A tensor on the emulated device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> EmulatedTensor:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=OTHER
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        """The host reads it, as from any device."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("operations run under OtherDevice")


class OtherDevice(TorchDispatchMode):
    """Runs operations where their tensors are."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        checked = (args[0], args[2:]) if func in INDEXED else (args, kwargs)
        given = [each for each in tree_leaves(checked) if isinstance(each, Tensor)]
        named = next((each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.device)), None)
        if func not in MOVES:
            mixed = {type(each) for each in given if each.dim()}
            assert len(mixed) < 2, f"{func} over tensors of two devices"
        there = any(isinstance(each, EmulatedTensor) for each in given)
        if named is not None:
            there = torch.device(named) == OTHER
        if there:
            self.computed.append(str(func))
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
        out = func(*plain_args, **plain_kwargs)
        if func is aten.copy_.default:
            return args[0]
        return tree_map(lambda each: _wrapped(each, args) if there else each, out)


class _Literals(TorchFunctionMode):
    """Lists that become tensors of `meta` have no values there: they are made on the CPU and moved, as for CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") == OTHER:
            del kwargs["device"]
            return func(*args, **kwargs).to(OTHER)
        if func is Tensor.__getitem__ and isinstance(args[1], list):
            args = args[0], torch.tensor(args[1])
        return func(*args, **kwargs)


@contextmanager
def other_device() -> Iterator[OtherDevice]:
    """Within it, torch.device("meta") computes."""
    with OtherDevice() as device, _Literals():
        yield device


def _plain(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.held if isinstance(value, EmulatedTensor) else value


def _wrapped(value: Any, args: Any) -> Any:
    """The result; an operation in place gives back the tensor that it changed."""
    if not isinstance(value, Tensor):
        return value
    for each in args:
        if isinstance(each, EmulatedTensor) and each.held is value:
            return each
    with torch.inference_mode(False):
        return EmulatedTensor(value)
