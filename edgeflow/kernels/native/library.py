"""The compiled products, loaded once. Calls release the GIL and run on the threads of torch's OpenMP runtime."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from edgeflow.kernels.native.build import library_path

SETS = ("avx512", "avx2", "portable")
"""Instruction sets by the numbers that the library has for them, best first."""
KINDS = {torch.float32: 0, torch.bfloat16: 1}
"""Dtypes of rows and results by the numbers that the library has for them."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long


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
    """Those that this processor has, best first."""
    return tuple(name for number, name in enumerate(SETS) if library().edgeflow_has(number))
