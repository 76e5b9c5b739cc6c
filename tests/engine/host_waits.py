"""Tensors without contents stand for those of a GPU: what would wait for it, or copy to it, fails."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine.recorded_graphs import READS_ON_THE_HOST


class OnTheDevice(TorchDispatchMode):
    """Fails where a program reads the device, or works on a tensor of the host. Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert not name.startswith(READS_ON_THE_HOST), f"{name} waits for the device"
        result = function(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        assert all(tensor.is_meta for tensor in given), f"{name} works on the host"
        self.calls.append(name)
        return result


class NoLiterals(TorchFunctionMode):
    """Fails where a tensor is made from values of the host. Among tensors without contents that copies nothing."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy), "values are uploaded"
        return function(*args, **(kwargs or {}))
