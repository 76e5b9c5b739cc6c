"""Helpers of the wrappers of Triton kernels: block sizes, and a check for the interpreter."""

from __future__ import annotations

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on")
"""Read once, as Triton does when a kernel is defined; products of bfloat16 are wrong there, so it gets float32."""
ELSEWHERE = 16
"""Multiprocessors assumed of a device that has none: in the interpreter, and where kernels are compiled for others."""


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least` (1 at least)."""
    return 1 << max(least - 1, 0).bit_length()


def cdiv(count: int, block: int) -> int:
    """Blocks that cover `count`."""
    return -(-count // block)


def warps_of(width: int, *, small: bool = False) -> int:
    """Warps of an attention tile. 64 queries of heads wider than 64 do not fit the registers of 4; 16 queries do."""
    return 4 if small or width <= 64 else 8


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device, from its properties, which torch caches: nothing waits for the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else ELSEWHERE
