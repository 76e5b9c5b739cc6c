"""Compile the FlashInfer modules that the service calls into the installed package; no compiler is needed later.

It needs nvcc but no GPU; FLASHINFER_CUDA_ARCH_LIST names the architectures ("8.7": AGX Orin). bfloat16, head sizes 64
and 128: OpenVLA, Llama, Qwen. Other sizes are compiled at their first call, if nvcc is installed.
Arguments: names of the modules to compile (default: all).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import torch
from flashinfer.jit import build_jit_specs, env
from flashinfer.jit.activation import gen_act_and_mul_module
from flashinfer.jit.attention.modules import (
    gen_batch_attention_module,
    gen_batch_decode_module,
    gen_batch_prefill_module,
)
from flashinfer.jit.norm import gen_norm_module
from flashinfer.jit.rope import gen_rope_module

HEAD_SIZES = (64, 128)
NO_POSITIONS = 0  # RoPE is a separate operator


def modules() -> Iterator[Any]:
    yield gen_norm_module()
    yield gen_rope_module()
    yield gen_act_and_mul_module("silu")
    for size in HEAD_SIZES:
        types = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
        attention = (*types, size, size, NO_POSITIONS, False, False)  # neither sliding window nor soft cap
        yield gen_batch_decode_module(*attention)
        yield gen_batch_prefill_module("fa2", *attention, False)
        yield gen_batch_attention_module(*attention)  # neither soft cap nor profiler


def main() -> int:
    wanted = [module for module in modules() if not sys.argv[1:] or module.name in sys.argv[1:]]
    build_jit_specs(wanted, verbose=False)
    for module in wanted:
        target = env.FLASHINFER_AOT_DIR / module.name / f"{module.name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(env.FLASHINFER_JIT_DIR / module.name / target.name, target)
        print(os.environ["FLASHINFER_CUDA_ARCH_LIST"], module.name, f"{target.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
