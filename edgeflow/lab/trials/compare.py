"""Checks that an implementation is right: its outputs against the reference's, on the same numbers in float32.

Deviation: per row (last dimension) the norm of the difference over the norm of the expected values; the largest
counts, so that one wrong row among thousands is found. Integers and flags must be equal, and NaN must be in the
same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.linear import saturates
from edgeflow.lab.trials.cases import Outputs, TrialCase

TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
WRITTEN_TOLERANCE = {"int8": 8e-3, "fp8": 3e-2, "int4": 0.1}
"""Tolerance for values written in a KV format: a step up or down here and there. Always rounding down would be 1.5e-2,
7e-2 and 0.24.
"""

CONVERTED_TOLERANCE = {"int8": 1.3e-2, "fp8": 7e-2}
"""Tolerance for products whose float weights were converted to 8 bits. Weights that are rounded down exceed it."""

STORED_TOLERANCE = {"awq": 5e-4}
"""Tolerance for products with stored weights, which the reference rounds to float16. A scale that is off by 2 % gives
2e-2.
"""

SUMS_IN_FLOAT32 = {"fold_memory"}
"""Operators whose outputs are in float32, and as exact, whatever the dtype of the model."""

ROWS_OF_7_BITS = 1.7  # times the deviation of rows of 8 bits, on a CPU without VNNI


def tolerance(case: TrialCase, dtype: torch.dtype, weight: str = "", own: float = 0.0) -> float:
    """The largest deviation of a correct implementation.

    weight: the format that it reads; own: its own deviation.
    """
    written = WRITTEN_TOLERANCE.get(case.kv, 0.0) if case.op_name == "rope_write_kv" else 0.0
    exact = max(TOLERANCE[torch.float32 if case.op_name in SUMS_IN_FLOAT32 else dtype], written)
    coarser = ROWS_OF_7_BITS if weight == "int8" and saturates() else 1.0
    format = STORED_TOLERANCE if case.weight == weight else CONVERTED_TOLERANCE
    return max(exact, coarser * format.get(weight, 0.0), own)


@dataclass(frozen=True, slots=True)
class ReferenceOutputs:
    """The reference's outputs of a case in float32, computed once for all candidates."""

    case: TrialCase
    device: torch.device
    dtype: torch.dtype
    outputs: Outputs

    @classmethod
    def of(
        cls, case: TrialCase, reference: Callable[..., Any], device: torch.device, dtype: torch.dtype
    ) -> ReferenceOutputs:
        outputs = case.problem(device, torch.float32, rounded=dtype).given_to(reference)()
        return cls(case, device, dtype, outputs)

    def deviation(self, function: Callable[..., Any]) -> float:
        """The deviation of an implementation; infinite if shapes, dtypes, integers or NaN differ."""
        found = self.case.problem(self.device, self.dtype).given_to(function)()
        if len(found) != len(self.outputs):
            return math.inf
        return max(_between(mine, theirs, self.dtype) for mine, theirs in zip(found, self.outputs, strict=True))


def _between(found: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    if found.shape != expected.shape:
        return math.inf
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(found, expected) else math.inf
    if found.dtype not in (dtype, torch.float32) or not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    if not expected.numel():
        return 0.0
    wide, wanted = found.double().nan_to_num(), expected.double().nan_to_num()
    off = (wide - wanted).norm(dim=-1)
    size = wanted.norm(dim=-1)
    return float((off / size.clamp_min(1e-3 * max(size.max().item(), 1e-30))).max())
