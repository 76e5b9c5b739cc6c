"""Run by test_triton.py without TRITON_INTERPRET: compiles what a launch would, for GPUs that are not here.

The wrappers run on CPU tensors; instead of being launched, each kernel is compiled for the architecture asked for, with
the specialisation a launch on such tensors has. A JSON line per kernel: registers, stack, shared memory, loads of 16
bytes. Several widths of a head are compiled for sm_87, one for the others, and for sm_89 only what runs from there on.
What rows see and slots in 4 bits are compiled for sm_87 and sm_90, as sm_80 has the registers and instructions of
sm_87. With --every, as each night: all widths, sm_80 as well, and what rows see in int8 for sm_90.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from edgeflow.kernels.kv.formats import FP8, INT8
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.visibility import Visibility, causal
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.trials import cases, kv_cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow.lab.trials.visibility import bidirectional_suffix, tree_of_drafts, window

CPU = torch.device("cpu")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
SPANS = [Span(0, 0, 70), Span(1, 600, 1)]
STEP = [Span(0, 828, 50)]
"""A step of pi0 behind its prefix; its heads are 256 wide, and read by all queries."""
WIDE_LOAD = re.compile(r"cp\.async\.cg\.shared\.global .*, 0x10,")
"""An asynchronous load of 16 bytes per thread."""
WIDTHS = {87: (64, 72, 128, 256), 89: (), 90: (128,)}
"""Of a head, by architecture; 72 is padded by the kernels."""
EVERY_WIDTH = {80: (128,), 87: (64, 72, 80, 96, 128, 256), 89: (), 90: (128,)}


class AbsentGPU:
    """What the runtime asks its driver, answered for a GPU that is not here."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)


def real_cases(arch: int, widths: tuple[int, ...], *, every: bool) -> Iterator[TrialCase]:
    """Shapes of served models."""
    if arch >= 89:
        yield cases.linear(3, 64, 18944)
    if not widths:
        return
    for rows in (1, 17, 40):
        yield cases.linear(rows, 128, 4096, bias=True, group=64)
    yield cases.rms_norm(3, 4096)
    yield cases.add_rms_norm(3, 3584)
    yield cases.add_layer_norm(3, 1152)
    yield cases.add_rms_norm(3, 2048, wide=True)
    yield cases.add_adaptive_norm(3, 1024)
    yield cases.add_adaptive_norm(3, 1024, first=True)
    yield cases.swiglu(3, 11008)
    yield cases.swiglu(3, 4096, "geglu")
    yield cases.greedy(7, 32064)
    yield cases.shift_kv_chain(300, [280, 281], Heads(2, 2, 128))
    yield cases.shift_kv(300, 280, Heads(2, 2, 128))
    for width in widths:
        heads = Heads(14, 2, width)
        yield cases.rope_write_kv(SPANS, heads)
        yield cases.packed_attention(SPANS, heads)
        yield cases.varlen_attention([70, 70], Heads(2, 2, width))
    for kv_format in (INT8, *([FP8] if arch >= 89 else [])):
        yield cases.rope_write_kv_scaled(SPANS, Heads(4, 4, 128), kv_format)
        yield cases.packed_attention_scaled(SPANS, Heads(4, 4, 128), kv_format)
    if arch == 80:
        return
    yield kv_cases.attention_int4(SPANS, Heads(14, 2, 128))
    yield from seen_cases([window(span, 32, 4) for span in SPANS], int8=every or arch == 87)
    yield cases.packed_attention(STEP, Heads(8, 1, 256), 1, [bidirectional_suffix(STEP[0], 50)])


def seen_cases(visibility: list[Visibility], *, int8: bool) -> Iterator[TrialCase]:
    yield cases.packed_attention(SPANS, Heads(14, 2, 128), 1, visibility)
    if int8:
        yield cases.packed_attention_scaled(SPANS, Heads(4, 4, 128), INT8, visibility)


def tree_cases(arch: int, *, every: bool) -> Iterator[TrialCase]:
    """Attention with bits, which takes more registers than the rest."""
    if arch in (87, 90):
        yield from seen_cases([causal(SPANS[0]), tree_of_drafts(SPANS[1], [-1])], int8=every or arch == 87)


def main() -> None:
    every = "--every" in sys.argv
    built: list[Any] = []
    plain = JITFunction.run

    def compile_only(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = plain(self, *arguments, grid=grid, warmup=True, **options)
        built.append(kernel)
        return kernel

    JITFunction.run = compile_only
    table = built_in_table()
    for arch, widths in (EVERY_WIDTH if every else WIDTHS).items():
        driver.set_active(AbsentGPU(arch))
        for case, trees in [
            *((each, False) for each in real_cases(arch, widths, every=every)),
            *((each, True) for each in tree_cases(arch, every=every)),
        ]:
            built.clear()
            impl_id = "fp8" if case.weight == FLOAT else "triton"
            launch = table.implementation(case.op_name, impl_id, case.kv).load()
            for params in variants(case):
                case.problem(CPU, torch.bfloat16).given_to(partial(launch, **params))()
            for kernel in {kernel.hash: kernel for kernel in built}.values():
                line = {
                    "arch": arch,
                    "op": case.op_name,
                    "kv": case.kv,
                    "kernel": kernel.name,
                    "warps": kernel.metadata.num_warps,
                }
                line |= {"shared": kernel.metadata.shared, "hash": kernel.hash, "trees": trees, "causal": case.causal}
                line |= {"wide_loads": len(WIDE_LOAD.findall(kernel.asm["ptx"]))}
                print(json.dumps(line | usage(kernel.asm["cubin"])), flush=True)


def variants(case: TrialCase) -> list[dict[str, int]]:
    """Parameters that compile other kernels: attention of large and of small tiles apart."""
    return [{}, {"apart": 1}] if case.op_name == "packed_attention" and case.signed()[1].endswith("d=128") else [{}]


def usage(binary: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout).groups()
    return {"registers": int(registers), "stack": int(stack)}


if __name__ == "__main__":
    main()
