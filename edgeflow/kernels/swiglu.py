"""SwiGLU: silu(gate) * up. gate_up [L_Q, 2F] has gate and up side by side; out [L_Q, F].

`geglu` is the same with the tanh form of GELU, as Gemma has it. It has one implementation and is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

SwiGLU = Callable[[Tensor], Tensor]


def reference(gate_up: Tensor) -> Tensor:
    """The formula."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def fused(gate_up: Tensor) -> Tensor:
    """torch's SiLU, then the product in place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    """torch's GELU, then the product in place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
