"""LINEAR in C++: weights of 4 and 8 bits for rows that are rounded to 8 bits. CPU only.

Each row has a scale per 32 inputs, so results do not depend on the other rows of a call. Products are summed in whole
numbers over 32 inputs and in float32 beyond. Calls release the GIL and run on the threads of torch's OpenMP runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight
from edgeflow.kernels.native.build import library_path
from edgeflow.kernels.weights import Int8Weight

SETS = ("avx512", "avx2", "portable")
"""Instruction sets by the numbers that the library has for them, best first."""
KINDS = {torch.float32: 0, torch.bfloat16: 1}
"""Dtypes of rows and results by the numbers that the library has for them."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long

BLOCK = 32
"""Inputs of a row that share a scale."""
TILE = 16
"""Outputs that are computed together."""
STEP = 8
"""Inputs of a tile whose codes lie together: byte j of 4 per output has input j and input 4 + j."""


class Native:
    """A product of the library with its weight, [outputs, inputs] with scales per `group` of inputs.

    instruction_set: one of `instruction_sets()`, the best by default.
    """

    def __init__(
        self,
        product: Callable[..., None],
        parts: Sequence[Tensor],
        *,
        shape: tuple[int, int],
        group: int,
        bias: Tensor | None,
        instruction_set: str,
    ) -> None:
        self._product, self._parts = product, tuple(parts)
        (self._outputs, self._inputs), self._group = shape, group
        self._bias = None if bias is None else bias.float()
        self._set = SETS.index(instruction_set or instruction_sets()[0])
        self.nbytes = sum(part.nbytes for part in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        """ValueError for rows of another width or device, whose memory must not be read."""
        if x.dim() != 2 or x.shape[1] != self._inputs or x.device.type != "cpu":
            raise ValueError(f"rows {list(x.shape)} on {x.device}, expected [m, {self._inputs}] on the CPU")
        x, rows = x.contiguous(), x.shape[0]
        scratch, out = _scratch(rows, self._inputs, self._group), x.new_empty(rows, self._outputs)
        self._product(
            self._set,
            torch.get_num_threads(),
            KINDS[x.dtype],
            *(part.data_ptr() for part in self._parts),
            None if self._bias is None else self._bias.data_ptr(),
            x.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            rows,
            self._inputs,
            self._outputs,
            self._group,
        )
        return out


class NativeInt4(Native):
    """A weight of 4 bits in tiles of 16 outputs; no other form of it stays in memory."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None, instruction_set: str = "") -> None:
        super().__init__(
            library().edgeflow_int4,
            [_tiles_of_codes(weight), _tiles_of_groups(weight.scales), _tiles_of_groups(weight.zeros)],
            shape=weight.shape,
            group=weight.group,
            bias=bias,
            instruction_set=instruction_set,
        )


class NativeInt8(Native):
    """A weight of 8 bits as it lies, so that it may be shared with an embedding."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None, instruction_set: str = "") -> None:
        super().__init__(
            library().edgeflow_int8,
            [weight.values.contiguous(), weight.scale.contiguous()],
            shape=weight.shape,
            group=weight.shape[1],
            bias=bias,
            instruction_set=instruction_set,
        )


def _scratch(rows: int, inputs: int, group: int) -> Tensor:
    """Memory for rows in 8 bits: codes, a float32 scale per block, a float32 sum per group."""
    return torch.empty(rows * (inputs + 4 * (inputs // BLOCK) + 4 * (inputs // group)), dtype=torch.uint8)


def _tiles_of_codes(weight: AwqWeight) -> Tensor:
    """uint8 [N / 16, E / 8, 16, 4], N rounded up: byte j has input j of 8 in its low nibble, 4 + j in its high one."""
    low, high = _tiles(weight.q).view(-1, TILE, weight.shape[1] // STEP, 2, STEP // 2).unbind(3)
    return (low | high << 4).transpose(1, 2).contiguous()


def _tiles_of_groups(values: Tensor) -> Tensor:
    """[N, E / G] → [N / 16, E / G, 16], N rounded up"""
    return _tiles(values).transpose(1, 2).contiguous()


def _tiles(values: Tensor) -> Tensor:
    """[N, n] → [N / 16, 16, n], with zeros for the outputs that are missing in the last tile"""
    missing = -len(values) % TILE
    padded = torch.cat([values, values.new_zeros(missing, values.shape[1])])
    return padded.view(-1, TILE, values.shape[1])


@cache
def library() -> ctypes.CDLL:
    """The library of these sources; OSError where it is not built or does not load."""
    found = ctypes.CDLL(str(library_path()))
    found.edgeflow_has.argtypes = (_INT,)
    for function, pointers in ((found.edgeflow_int4, 7), (found.edgeflow_int8, 6)):
        function.argtypes = (*(_INT,) * 3, *(_POINTER,) * pointers, *(_LONG,) * 4)
        function.restype = None
    return found


@cache
def missing() -> str:
    """The reason why the products cannot run; "" where they can."""
    if not library_path().is_file():
        return "the products in C++ are not built (scripts/setup)"
    try:
        library()
    except OSError as error:
        return f"the products in C++ do not load: {error}"
    return ""


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that this processor has, best first."""
    return tuple(name for number, name in enumerate(SETS) if library().edgeflow_has(number))
