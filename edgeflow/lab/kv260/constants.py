"""Every number of the cycle model, with its source. "The paper" is On-Device Qwen2.5 (Xiang et al., 2025).

Nothing else in the model is measured: all other times follow from these and from the sizes of the network.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    """A number with its unit and source: the place in the paper, or its derivation."""

    value: float
    unit: str
    source: str


CLOCK = Constant(200, "MHz", "the paper, section III-B, below Table II")
CHANNELS = Constant(4, "AXI channels", "the paper, section III-A")
STRIP = Constant(128, "bits per channel and cycle", "the paper, section III-A: each channel has 128-bit data")
DDR = Constant(19.2, "GB/s", "the paper, section II-B: memory bandwidth of the KV260")
UNITS = Constant(4, "MACRO_MAC units", "the paper, section III-B: one per channel")
PE_INPUTS = Constant(8, "inputs per step", "the paper, section III-B: an array of 8 x 8 PEs")
STEP_CYCLES = Constant(
    2,
    "cycles from one step of a unit to the next",
    "derived: a stream of 128 bits brings the 64 weights of a step in two cycles, and the SystemVerilog in "
    "deploy/kv260 takes as many; the paper (section III-B) gives no interval",
)
ACTIVATION_PORT = Constant(
    128,
    "bits per cycle",
    "derived: the paper does not say how inputs and sums travel; one port as wide as a channel, inputs before and sums "
    "after the weights, which is the slowest order",
)
GROUP = Constant(64, "inputs per group", "the paper, section III-A")
ACTIVATIONS = Constant(
    8192,
    "inputs of a linear, at most",
    "the SystemVerilog in deploy/kv260: activations.sv holds 1024 steps of 8; the paper gives no limit",
)
MEMORY = Constant(4096, "MiB", "AMD data sheet DS987: 4 GB of memory on the K26 module, 64 bits wide, 2400 Mb/s")
HOST_MEMORY = Constant(
    512,
    "MiB",
    "assumed, not measured on a board: Linux, the program, its buffers and activations; the paper gives none",
)
POSITIONS = Constant(
    4096, "positions", "assumed: keys and values of as many, or as the model has; the paper does not say how many"
)

TABLE_I: dict[str, Constant] = {
    name: Constant(us, "microseconds per layer", "the paper, Table I")
    for name, us in (
        ("embedding", 32),
        ("qkv", 1815),
        ("qkv_bias", 35),
        ("output", 839),
        ("attention", 42),
        ("gate_up", 8148),
        ("down", 4651),
        ("rope", 87),
        ("rms_norm", 25),
        ("silu", 278),
    )
}
"""Times of Qwen2.5-0.5B on the four A53s. The paper does not say whether they are for a layer or for the network;
multiplied by 24 they are near its 2.80 tokens per second, without that they are not.
"""

PAPER_MAC_TOTAL = Constant(14650, "microseconds per layer", 'the paper, Table I, row "Overall MAC operations"')
PAPER_BASELINE = Constant(2.8, "tokens per second", "the paper, Table III, baseline")
PAPER_ACCELERATED = Constant(5.1, "tokens per second", "the paper, Table III, AWQ with groups of 64")
PAPER_BASELINE_SIZE = Constant(988, "MB", "the paper, Table III; 10^6 bytes by the arithmetic of its FP16 weights")
PAPER_SIZE = Constant(443.81, "MB", "the paper, Table III; 2^20 bytes by the arithmetic of its 4-bit weights")

ALL = {
    "clock": CLOCK,
    "channels": CHANNELS,
    "strip": STRIP,
    "ddr": DDR,
    "units": UNITS,
    "pe_inputs": PE_INPUTS,
    "step_cycles": STEP_CYCLES,
    "activation_port": ACTIVATION_PORT,
    "group": GROUP,
    "activations": ACTIVATIONS,
    "memory": MEMORY,
    "host_memory": HOST_MEMORY,
    "positions": POSITIONS,
    **{f"table_1_{name}": constant for name, constant in TABLE_I.items()},
    "paper_mac_total": PAPER_MAC_TOTAL,
    "paper_baseline": PAPER_BASELINE,
    "paper_accelerated": PAPER_ACCELERATED,
    "paper_baseline_size": PAPER_BASELINE_SIZE,
    "paper_size": PAPER_SIZE,
}
"""All constants by name, for reports."""
