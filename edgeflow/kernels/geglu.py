"""GEGLU: gelu(gate) * up with the tanh form of GELU, as Gemma has it. gate_up [L_Q, 2F], gate and up side by side; out
[L_Q, F]. One implementation, so it is not in the operator table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def geglu(gate_up: Tensor) -> Tensor:
    """torch's GELU, then the product in place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
