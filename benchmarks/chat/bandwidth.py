"""The memory bandwidth that a copy reaches on this machine."""

from __future__ import annotations

from functools import partial

import torch

from edgeflow.kernels.timing import median_us

SAMPLES = 9


def copy_bytes_per_s() -> float:
    """Bytes per second, read and written, of a block larger than any cache, with as many threads as torch has."""
    source = torch.empty(2**28, dtype=torch.uint8)
    target = torch.empty_like(source)
    taken_us = median_us({"copy": partial(target.copy_, source)}, source.device, SAMPLES)["copy"]
    return 2 * source.nbytes / (taken_us * 1e-6)
