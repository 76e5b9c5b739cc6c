"""LINEAR on the accelerator's model: weights of 4 bits as macros, sums to the last bit, biases on the CPU.

No table has these implementations but those of `hybrid_table`.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.table.dimensions import STAGES
from edgeflow.kernels.table.implementations import REFERENCE, Implementation
from edgeflow.kernels.table.operator_table import Entry, OperatorKey, OperatorTable, built_in_table
from edgeflow.lab.kv260 import mac
from edgeflow.lab.kv260.macro import GemmWords, pack

ACCELERATED = "kv260"
EXACT = "exact"
BACKENDS = (ACCELERATED, REFERENCE, EXACT)
"""Backends of linears in 4 bits: the accelerator; weights rounded to float16, as AutoAWQ dequantises; exact ones."""


class Accelerated:
    """The accelerator's sums; the processing system adds the bias."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        gemm = GemmWords(*(part.numpy() for part in weight.gemm()))
        self._weight = mac.unpack_unit(pack(gemm))
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        sums = torch.from_numpy(mac.sums(self._weight, np.ascontiguousarray(x.float().numpy())))
        return (sums if self._bias is None else sums + self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class Exact:
    """A product with the weight in float32, not rounded to float16: what the accelerator computes, in another order."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        self._weight = weight.exact()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self._weight, self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


def hybrid_table(backend: str = ACCELERATED) -> OperatorTable:
    """A table in which one of BACKENDS serves every linear in 4 bits on a CPU. All else is chosen as usual."""
    own = (_implementation(ACCELERATED, Accelerated), _implementation(EXACT, Exact))
    entries = (
        Entry(OperatorKey(op_name="linear", hw_profile="cpu", stage=stage, weight=AWQ), backend, origin="co-simulation")
        for stage in STAGES
    )
    return built_in_table(*own).overlaid(*entries)


def _implementation(impl_id: str, function: type) -> Implementation:
    return Implementation(
        op_name="linear", impl_id=impl_id, function=function, devices=frozenset({"cpu"}), weight=AWQ, replayable=False
    )
