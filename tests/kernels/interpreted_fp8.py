"""Run by test_fp8.py with TRITON_INTERPRET=1: rows quantised by the kernel against the reference, a JSON line a run."""

from __future__ import annotations

import json

import torch

from edgeflow.kernels.triton.fp8 import quantise_rows
from edgeflow.kernels.weights import fp8_rows

WIDTHS = (1, 16, 63, 64, 65, 896, 1024, 4096)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in WIDTHS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            wide = torch.randn(6, width + 8) * torch.logspace(-5, 0, width + 8)  # down to what FP8 rounds to nothing
            wide[2], wide[3] = 0, torch.linspace(-448, 448, width + 8)  # ties between neighbours
            x = wide.to(dtype)[:, :width]  # rows that lie apart
            (found, scale), (wanted, wanted_scale) = quantise_rows(x), fp8_rows(x)
            off = int((found.float() != wanted.float()).sum()) + int((scale != wanted_scale).sum())
            print(json.dumps({"width": width, "dtype": str(dtype), "off": off}), flush=True)


if __name__ == "__main__":
    main()
