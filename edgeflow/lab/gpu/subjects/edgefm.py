"""Times of EdgeFM on an A800 80GB from its appendix A: milliseconds of a prefill and of 32 decode steps.

The copy of the paper at hand has lost the tables' captions; which is which follows from their order (vision-language
models, then language models, by size) and from their times. 7B is the decoder of the vision-language model.
"""

from __future__ import annotations

A800_BANDWIDTH = 2.039e12
"""bytes per second, from the data sheet of the SXM part; the paper does not say which part it used"""
DECODE_STEPS = 32
PREFILL_ROWS = (512, 1024, 2048)
TIMES_MS = {
    "qwen2.5-0.5b": {512: (3.671, 56.547), 1024: (6.374, 54.924), 2048: (11.886, 54.134)},
    "qwen2.5-1.5b": {512: (8.607, 100.137), 1024: (15.294, 101.320), 2048: (30.073, 104.723)},
    "qwen2.5-3b": {512: (16.057, 171.640), 1024: (28.767, 171.036), 2048: (58.110, 177.585)},
    "qwen2.5-7b": {512: (30.525, 300.683), 1024: (58.343, 300.932), 2048: (120.855, 301.360)},
}


def scaled_ms(model: str, rows: int, bandwidth: float) -> tuple[float, float] | None:
    """Prefill and decode as if their time went by bandwidth (bytes per second); None where the paper has none."""
    times = TIMES_MS.get(model, {}).get(rows)
    if times is None:
        return None
    prefill, decode = (ms * A800_BANDWIDTH / bandwidth for ms in times)
    return prefill, decode
