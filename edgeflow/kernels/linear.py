"""LINEAR: rows times a weight. An implementation is made once per weight and then called by every pass.

make(weight [N, E] of a format, bias [N] or None) → linear(x [m, E]) → [m, N]: x weight^T + bias, in memory that is the
caller's own
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight
from edgeflow.kernels.weights import FloatWeight, Fp8Weight, Int8Weight, QuantiseRows, Weight, dequantised, fp8_rows


class Linear(Protocol):
    """An implementation bound to its weight."""

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weight, in every form that is used."""
        ...


class _OfFloats:
    """Holds the floats of a weight of any format."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        self._weight = weight.floats()
        self._bias = bias
        self.nbytes = self._weight.nbytes


class Reference(_OfFloats):
    """The formula."""

    def __call__(self, x: Tensor) -> Tensor:
        out = x @ self._weight.t()
        return out if self._bias is None else out + self._bias


class Gemm(_OfFloats):
    """One GEMM over the weight as it lies."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Dequantised:
    """One GEMM over the weight's floats, which are made anew for every call, so that only the weight stays in
    memory.
    """

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight.floats(), self._bias)


class Packed:
    """The weight reordered once into the blocks that oneDNN's GEMM reads. CPU only, in `packed_dtypes`.

    A few rows times a small float32 weight, which stays in the cache, use the weight as it lies: the call of oneDNN
    would cost more. So do more rows of a smaller one.
    """

    ROWS = 64  # rows that the blocks are laid out for; they serve a single row as well as hundreds
    FEW = 4
    SMALL = 1 << 20  # elements of a weight
    CHEAP = 1 << 21  # products of a row and an element, measured with weights of 192 x 192 to 896 x 1152

    def __init__(self, weight: FloatWeight, bias: Tensor | None) -> None:
        values = weight.values
        small = values.dtype == torch.float32 and values.numel() <= self.SMALL
        self._few = Gemm(weight, bias) if small else None
        self._most_rows = max(self.FEW, self.CHEAP // max(values.numel(), 1))
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(values.contiguous(), self.ROWS)
        self._bias = bias
        self.nbytes = weight.nbytes * (2 if small else 1)

    def __call__(self, x: Tensor) -> Tensor:
        if self._few is not None and x.shape[0] <= self._most_rows:
            return self._few(x)
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
        return out


class GemmGelu:
    """A GEMM with a GELU after it, as the MLPs of vision towers begin. approximate: torch's, none or tanh."""

    def __init__(self, weight: Weight, bias: Tensor | None, approximate: str) -> None:
        self._linear = Gemm(weight, bias)
        self._approximate = approximate
        self.nbytes = self._linear.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.gelu(self._linear(x), approximate=self._approximate)


class PackedGelu:
    """oneDNN's GEMM over a packed weight, with the GELU applied to the sums before they are rounded."""

    ROWS = 1024  # that the blocks are laid out for

    def __init__(self, weight: Weight, bias: Tensor | None, approximate: str) -> None:
        values = weight.floats().contiguous()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(values, self.ROWS)
        self._bias = bias
        self._approximate = approximate
        self.nbytes = values.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._weight, self._bias, "gelu", [], self._approximate
        )
        return out


class Int8:
    """8-bit weights for a row in 8 bits (one scale; 7 bits where 8 saturate).

    A single row, which is memory-bound, reads a quarter or half of the bytes. CPU only; the table uses it for the row
    of a decode pass.
    """

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self._packed = _packed(weight, None if bias is None else bias.float())
        self.nbytes = weight.values.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self._packed, saturates()).to(x.dtype)
        return out


LEAST_TORCH = (2, 7)  # the first whose GEMM with one scale per row runs on sm_89


class Fp8:
    """One FP8 GEMM that applies the scales, one per output and one per row, and the bias.

    The operands are half as many bytes as in bfloat16, and the units that multiply them are twice as fast. CUDA from
    sm_89, sizes in multiples of 16, bfloat16.
    """

    def __init__(self, weight: Fp8Weight, bias: Tensor | None, quantise: QuantiseRows = fp8_rows) -> None:
        self._weight = weight.values.t()  # the GEMM reads the weight column by column
        self._scale = weight.scale.unsqueeze(0)
        self._bias = bias
        self._quantise = quantise
        self._dtype = weight.dtype
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        rows, scale = self._quantise(x)
        out: Tensor = torch._scaled_mm(
            rows, self._weight, scale, self._scale, bias=self._bias, out_dtype=self._dtype, use_fast_accum=True
        )
        return out


class Fp8Emulated(_OfFloats):
    """The same numbers by a plain GEMM: shows on any machine what FP8 costs in accuracy, and saves no time."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = dequantised(*fp8_rows(x)).to(x.dtype)
        return F.linear(rows, self._weight, self._bias)


def no_fp8_product() -> str:
    """The reason why torch cannot run `Fp8`; "" where it can."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return "" if version >= LEAST_TORCH else f"needs torch {LEAST_TORCH[0]}.{LEAST_TORCH[1]}"


class TorchInt8:
    """torch's product of float rows and a weight of 8 bits as it lies, with its scales in the dtype it computes in."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self._values, self._scale = weight.values, weight.scale.to(weight.dtype)
        self._bias = bias
        self.nbytes = self._values.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int8pack_mm(x.contiguous(), self._values, self._scale)
        return out if self._bias is None else out.add_(self._bias)


def no_int8_product() -> str:
    """The reason why torch has no product with weights of 8 bits; "" where it has one."""
    return "" if hasattr(torch.ops.aten, "_weight_int8pack_mm") else "this torch has no product of 8 bits"


MIDDLE = 8
"""The code that torch takes for 0, before it adds a group's zero."""
INNER_TILES = 2  # an argument of GPUs, which the packing for CPUs asks for and does not read


class TorchInt4:
    """torch's product of float rows and a weight of 4 bits.

    W = (q - 8) * s + (8 - z) * s, with scales and zeros [E / G, N, 2] in the dtype it computes in.
    """

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        self._packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.q.to(torch.int32), INNER_TILES)
        scales = weight.scales.float()
        zeros = (MIDDLE - weight.zeros.float()) * scales
        self._scales_and_zeros = torch.stack([scales, zeros], -1).transpose(0, 1).to(weight.dtype).contiguous()
        self._group = weight.group
        self._bias = bias
        self.nbytes = self._packed.nbytes + self._scales_and_zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self._packed, self._group, self._scales_and_zeros
        )
        return out if self._bias is None else out.add_(self._bias)


def no_int4_product() -> str:
    """The reason why torch has no product with weights of 4 bits; "" where it has one."""
    return "" if hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu") else "this torch has no product of 4 bits"


@cache
def saturates() -> bool:
    """True where the CPU adds pairs of 8-bit products in 16 bits (x86 without VNNI): rows then keep only 7 bits."""
    ones = torch.ones(1, 8)
    packed = _packed(Int8Weight.of(ones), None)
    return float(torch.ops.quantized.linear_dynamic(ones, packed, False)) < 0.9 * ones.numel()


class ByRows:
    """Several implementations of one weight. by_class: for 1 row, up to 2, 4, 8, …; the last serves all beyond."""

    def __init__(self, by_class: Sequence[Linear]) -> None:
        self._by_class = tuple(by_class)
        self._last = len(by_class) - 1

    def __call__(self, x: Tensor) -> Tensor:
        return self._by_class[min((x.shape[0] - 1).bit_length(), self._last)](x)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in set(self._by_class))


def linear_gelu(weight: Weight, bias: Tensor | None, approximate: str, *, plain: bool = False) -> Linear:
    """The implementation for a weight's device and dtype, outside the operator table. plain: keep the weight as it
    lies.
    """
    packs = (
        not plain
        and isinstance(weight, FloatWeight)
        and weight.device.type == "cpu"
        and weight.dtype in packed_dtypes()
    )
    return PackedGelu(weight, bias, approximate) if packs else GemmGelu(weight, bias, approximate)


def packed_dtypes() -> frozenset[torch.dtype]:
    """Dtypes that oneDNN multiplies on this CPU."""
    halves = not no_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return frozenset({torch.float32, torch.bfloat16} if halves else {torch.float32})


def no_onednn() -> str:
    """The reason why oneDNN is missing; "" where it is there."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return "" if available else "torch was built without oneDNN"


def _packed(weight: Int8Weight, bias: Tensor | None) -> torch.ScriptObject:
    zero = torch.zeros(len(weight.scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is deprecated; the operator that reads it is what is fast
        quantized = torch._make_per_channel_quantized_tensor(weight.values, weight.scale.double(), zero, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, bias)
    return packed
