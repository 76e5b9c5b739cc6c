"""ResNets as torchvision publishes them, up to the last feature map, with frozen batch normalisation.

Published source: torchvision/models/resnet.py and ops/misc.py (FrozenBatchNorm2d).

Rows of pixels are computed channels last, which takes a third less time on CPUs. Normalisations are not folded into the
kernels: rounded kernels double the deviation from the published network and save nothing that can be measured. Channels
come from the checkpoint.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.models.checkpoint import Weights

BATCH_NORM_EPS = 1e-5
STRIDE = 32
"""Pixels of the image per cell of the feature map, rounded up at the edge."""


_BASIC, _BOTTLENECK = (3, 3), (1, 3, 1)
LAYOUTS = {
    "resnet18": ((2, 2, 2, 2), _BASIC),
    "resnet34": ((3, 4, 6, 3), _BASIC),
    "resnet50": ((3, 4, 6, 3), _BOTTLENECK),
    "resnet101": ((3, 4, 23, 3), _BOTTLENECK),
    "resnet152": ((3, 8, 36, 3), _BOTTLENECK),
}
"""The number of blocks of each of the four layers, and the side of each convolution of a block."""


def map_side(pixels: int) -> int:
    """The number of cells of a feature map along a side of so many pixels."""
    return -(-pixels // STRIDE)


class _Convolution:
    """A convolution and its normalisation, y * scale + shift; zeros around the image keep the side at stride 1.

    names: of the convolution and of its normalisation. shape: input channels and side of the kernel.
    """

    def __init__(
        self, weights: Weights, names: tuple[str, str], shape: tuple[int, int], stride: int, dtype: torch.dtype
    ) -> None:
        conv, norm = names
        inputs, side = shape
        kernel = weights.take(f"{conv}.weight", None, inputs, side, side)
        parts = ("weight", "bias", "running_mean", "running_var")
        gain, offset, mean, variance = (weights.take(f"{norm}.{part}", kernel.shape[0]) for part in parts)
        scale = gain * torch.rsqrt(variance + BATCH_NORM_EPS)
        self.scale, self.shift = (each.to(dtype)[:, None, None] for each in (scale, offset - mean * scale))
        self.kernel = kernel.to(dtype, memory_format=torch.channels_last)
        self.stride = stride

    @property
    def outputs(self) -> int:
        """C'"""
        return self.kernel.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, C, h, w] → [B, C', h / stride, w / stride], rounded up"""
        y = F.conv2d(x, self.kernel, stride=self.stride, padding=self.kernel.shape[-1] // 2)
        return torch.addcmul(self.shift, y, self.scale, out=y)


class _ResidualBlock:
    """Convolutions with a ReLU between them, added to the input, which `shortcut` brings to their shape.

    weights: those below `layer<n>.<index>.`
    """

    def __init__(
        self, weights: Weights, kernels: tuple[int, ...], inputs: int, stride: int, dtype: torch.dtype
    ) -> None:
        self.convolutions: list[_Convolution] = []
        channels, strided = inputs, 1 + kernels.index(3)  # the first of 3 x 3 takes the whole stride
        for index, side in enumerate(kernels, start=1):
            names, step = (f"conv{index}", f"bn{index}"), stride if index == strided else 1
            self.convolutions.append(_Convolution(weights, names, (channels, side), step, dtype))
            channels = self.outputs
        self.shortcut: _Convolution | None = None
        if stride > 1 or channels != inputs:
            names = ("downsample.0", "downsample.1")
            self.shortcut = _Convolution(weights, names, (inputs, 1), stride, dtype)

    @property
    def outputs(self) -> int:
        """C', the number of output channels."""
        return self.convolutions[-1].outputs

    def __call__(self, x: Tensor) -> Tensor:
        out = self.convolutions[0](x)
        for convolution in self.convolutions[1:]:
            out = convolution(out.relu_())
        return out.add_(x if self.shortcut is None else self.shortcut(x)).relu_()


class ResNet:
    """The layers of a backbone. weights: those below `backbone.`, in float32. channels: of the feature map."""

    def __init__(self, name: str, weights: Weights, dtype: torch.dtype) -> None:
        blocks, kernels = LAYOUTS[name]
        self._stem = _Convolution(weights, ("conv1", "bn1"), (3, 7), 2, dtype)
        self._blocks: list[_ResidualBlock] = []
        self.channels = self._stem.outputs
        for layer, count in enumerate(blocks, start=1):
            for index in range(count):
                stride = 2 if layer > 1 and index == 0 else 1
                below = weights.under(f"layer{layer}.{index}.")
                self._blocks.append(_ResidualBlock(below, kernels, self.channels, stride, dtype))
                self.channels = self._blocks[-1].outputs

    def __call__(self, images: Tensor) -> Tensor:
        """[B, 3, height, width] → [B, C, ceil(height / 32), ceil(width / 32)]"""
        x = self._stem(images.contiguous(memory_format=torch.channels_last))
        x = F.max_pool2d(x.relu_(), kernel_size=3, stride=2, padding=1)
        for block in self._blocks:
            x = block(x)
        return x
