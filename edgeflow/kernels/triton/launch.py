"""What the wrappers of Triton kernels share: block sizes, and whether the interpreter runs them."""

from __future__ import annotations

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on")
"""Read once, as Triton does when a kernel is defined; products of bfloat16 are wrong there, so it gets float32."""


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least` (1 at least)."""
    return 1 << max(least - 1, 0).bit_length()


def cdiv(count: int, block: int) -> int:
    """Blocks that cover `count`."""
    return -(-count // block)


def warps_of(width: int) -> int:
    """Of an attention tile of 64 queries: its sums of heads wider than 64 do not fit the registers of 4 warps."""
    return 4 if width <= 64 else 8
