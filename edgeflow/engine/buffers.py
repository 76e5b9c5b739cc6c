"""Tensors that lie end to end in one buffer of bytes, which a pass is staged in and a recording reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

ALIGNED = 16  # bytes: Triton compiles a kernel again for a pointer that is not at a multiple of it


@dataclass(frozen=True)
class BufferFields:
    """The fields of a buffer, each starting at a multiple of 16 bytes."""

    fields: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    """dtype and shape of each."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> BufferFields:
        """The fields of tensors."""
        return cls(tuple((each.dtype, tuple(each.shape)) for each in tensors))

    @cached_property
    def _bytes(self) -> list[tuple[int, int]]:
        """The bytes of each field, and those that fill it up."""
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in self.fields]
        return [(size, -size % ALIGNED) for size in sizes]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((size + fill for size, fill in self._bytes), initial=0))

    @property
    def nbytes(self) -> int:
        return self._starts[-1]

    def pieces(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as bytes, end to end; ValueError for one of another dtype or size than its field."""
        found = []
        for tensor, (dtype, shape), (size, fill) in zip(tensors, self.fields, self._bytes, strict=True):
            if tensor.dtype != dtype or tensor.numel() != math.prod(shape):
                raise ValueError(
                    f"a tensor of {tensor.dtype} {list(tensor.shape)} for a field of {dtype} {list(shape)}"
                )
            if size:
                found.append(tensor.contiguous().view(-1).view(torch.uint8))
            if fill:
                found.append(torch.zeros(fill, dtype=torch.uint8, device=tensor.device))
        return found

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The fields of a buffer of `nbytes`."""
        fields = zip(self.fields, self._starts, self._bytes, strict=False)
        return [buffer[at : at + size].view(dtype).view(shape) for (dtype, shape), at, (size, _) in fields]
