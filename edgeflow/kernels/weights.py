"""The weight of a projection as a value. Its format says how it is stored.

The loader returns one, fused projections concatenate them, and the operator table finds the implementations that read
the format. Weights of 8 bits have one scale per output, so quantised weights can be concatenated as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from edgeflow_client.errors import CheckpointError

FLOAT = "float"
LARGEST_E4M3 = 448.0
E4M3 = torch.float8_e4m3fn
QuantiseRows = Callable[[Tensor], tuple[Tensor, Tensor]]
"""x [m, E] → rows in e4m3 [m, E], and the factor of each [m, 1] float32: its largest magnitude / 448.

Rounded to the nearest, ties to even; a row of zeros has factor 0; NaN and infinities come out as NaN.
"""


class Weight(Protocol):
    """A weight [N, E]: N outputs, E inputs. Every format is a class."""

    format: ClassVar[str]

    @property
    def shape(self) -> tuple[int, int]:
        """N, E"""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it computes in."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int:
        """Its bytes in memory, scales included."""
        ...

    def cat(self, others: Sequence[Weight]) -> Weight:
        """Concatenate outputs, its own first; CheckpointError where formats differ."""
        ...

    def floats(self) -> Tensor:
        """[N, E] in `dtype`"""
        ...


AnyWeight = TypeVar("AnyWeight", bound=Weight)


@dataclass(frozen=True, slots=True, eq=False)
class FloatWeight:
    """values [N, E], in the dtype it computes in."""

    format: ClassVar[str] = FLOAT
    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def cat(self, others: Sequence[Weight]) -> FloatWeight:
        return FloatWeight(torch.cat([each.values for each in alike(self, others)]))

    def floats(self) -> Tensor:
        """Its values, not a copy."""
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class _ScaledWeight:
    """values [N, E] of 8 bits, scale [N] float32, the factor of each output."""

    format: ClassVar[str]
    values: Tensor
    scale: Tensor
    dtype: torch.dtype
    """The dtype of products."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def cat(self, others: Sequence[Weight]) -> _ScaledWeight:
        fused = alike(self, others)
        values, scales = [each.values for each in fused], [each.scale for each in fused]
        return type(self)(torch.cat(values), torch.cat(scales), self.dtype)

    def floats(self) -> Tensor:
        return dequantised(self.values, self.scale.unsqueeze(1)).to(self.dtype)


class Int8Weight(_ScaledWeight):
    """values: int8, from -127 to 127."""

    format = "int8"

    @classmethod
    def of(cls, floats: Tensor) -> Int8Weight:
        """Rounded to the nearest of 127 steps on either side of zero, ties to even."""
        scale = floats.abs().amax(1).float().clamp_(min=1e-8).div_(127)
        steps = (floats * scale.reciprocal()[:, None]).round_().clamp_(-127, 127)
        return cls(steps.to(torch.int8), scale, floats.dtype)


class Fp8Weight(_ScaledWeight):
    """values: e4m3."""

    format = "fp8"

    @classmethod
    def of(cls, floats: Tensor) -> Fp8Weight:
        """Rounded to the nearest in e4m3."""
        values, scale = fp8_rows(floats)
        return cls(values, scale.squeeze(1), floats.dtype)


CONVERSIONS: dict[str, Callable[[Tensor], Weight]] = {"int8": Int8Weight.of, "fp8": Fp8Weight.of}
"""From a float weight, by the format that it becomes."""


def converted(weight: Weight, to: str) -> Weight:
    """A weight in another format, made from a float one; the weight itself where it has the format."""
    if weight.format == to:
        return weight
    if weight.format != FLOAT:
        raise ValueError(f"a weight of format {weight.format} cannot become one of format {to}")
    return CONVERSIONS[to](weight.floats())


def alike(first: AnyWeight, others: Sequence[Weight]) -> list[AnyWeight]:
    """The same weights; CheckpointError where one has another format than the first."""
    alike = [each for each in others if isinstance(each, type(first))]
    if len(alike) < len(others):
        formats = ", ".join(dict.fromkeys([first.format, *(each.format for each in others)]))
        raise CheckpointError(f"projections that are computed as one have weights of several formats: {formats}")
    return [first, *alike]


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The reference of `QuantiseRows`."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST_E4M3
    return (x.float() / torch.where(scale == 0, 1.0, scale)).to(E4M3), scale


def dequantised(rows: Tensor, scale: Tensor) -> Tensor:
    """[m, E] float32: rows times their factors [m, 1]"""
    return rows.float() * scale
