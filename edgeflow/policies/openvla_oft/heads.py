"""The two small networks that OpenVLA-OFT adds to OpenVLA: the L1 action head and the projector of the state.

Published source: openvla-oft's prismatic/models/action_heads.py and prismatic/models/projectors.py.
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.linear import Gemm, Linear
from edgeflow.models.checkpoint import Weights
from edgeflow.models.weights_only import read_state_dict

LAYER_NORM_EPS = 1e-5
BLOCKS = 2
_WIDEST = 8  # bytes of a number as stored, at most
_SPARE = 1 << 20  # bytes of a file besides its numbers


class ActionHead:
    """[n, D * E] → [n, D]: the hidden states of an action's numbers, side by side, to the action.

    weights: `model.layer_norm1.weight`, …
    """

    def __init__(self, weights: Weights, dims: int, width: int) -> None:
        weights = weights.under("model.")
        self._norm1 = _norm(weights, "layer_norm1", dims * width)
        self._fc1 = _linear(weights, "fc1", width, dims * width)
        blocks = [weights.under(f"mlp_resnet_blocks.{index}.ffn.") for index in range(BLOCKS)]
        self._blocks = [(_norm(each, "0", width), _linear(each, "1", width, width)) for each in blocks]
        self._norm2 = _norm(weights, "layer_norm2", width)
        self._fc2 = _linear(weights, "fc2", dims, width)

    def __call__(self, hidden: Tensor) -> Tensor:
        x = F.relu(self._fc1(_normed(hidden, self._norm1)))
        for norm, linear in self._blocks:
            x = x + F.relu(linear(_normed(x, norm)))
        return self._fc2(_normed(x, self._norm2))


class ProprioProjector:
    """[B, P] → [B, E]: normalised states to a row each. weights: `fc1.weight`, …"""

    def __init__(self, weights: Weights, size: int, width: int) -> None:
        self._fc1, self._fc2 = _linear(weights, "fc1", width, size), _linear(weights, "fc2", width, width)

    def __call__(self, state: Tensor) -> Tensor:
        return self._fc2(F.gelu(self._fc1(state)))


def head_numbers(dims: int, width: int) -> int:
    """Numbers of an action head."""
    wide = dims * width
    return 2 * wide + (wide + 1) * width + BLOCKS * (width + 3) * width + 2 * width + (width + 1) * dims


def proprio_numbers(size: int, width: int) -> int:
    """Numbers of a projector of states."""
    return (size + 1) * width + (width + 1) * width


def read_weights(path: Path, numbers: int, like: Weights) -> Weights:
    """The weights of a .pt file of so many numbers, in the dtype and on the device of others; all its names may begin
    with `module.`."""
    tensors = read_state_dict(path, _WIDEST * numbers + _SPARE, strip="module.")
    return Weights.of(tensors, like.dtype, like.device, where=f"{path}: ")


def _linear(weights: Weights, name: str, outputs: int, inputs: int) -> Linear:
    return Gemm(weights.linear(name, outputs, inputs), weights.take(f"{name}.bias", outputs))


def _norm(weights: Weights, name: str, width: int) -> tuple[Tensor, Tensor]:
    return weights.take(f"{name}.weight", width), weights.take(f"{name}.bias", width)


def _normed(x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    weight, bias = norm
    return F.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPS)
