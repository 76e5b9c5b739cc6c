"""The time of a decoder's operations on the four A53s for one row, from the paper's Table I.

Each row of the table grows with one size of the network. The head, which the table leaves out, has the rate of the
table's largest products, gate, up and down together.
"""

from __future__ import annotations

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.network import PAPER_MODEL, PUBLISHED, fused_linears
from edgeflow.models.llama import LlamaConfig


def layer_times(config: LlamaConfig) -> dict[str, float]:
    """Microseconds of each row of Table I in a layer of this network."""
    here, there = _sizes(config), _sizes(PUBLISHED[PAPER_MODEL])
    return {name: constant.value * here[name] / there[name] for name, constant in constants.TABLE_I.items()}


def head_time(config: LlamaConfig) -> float:
    """Microseconds of the head."""
    return config.vocab_size * config.hidden_size / (1e3 * mac_rate())


def mac_rate() -> float:
    """GMAC/s of the A53s that Table I implies for gate, up and down."""
    sizes = _sizes(PUBLISHED[PAPER_MODEL])
    time = sum(constants.TABLE_I[name].value for name in ("gate_up", "down"))
    return (sizes["gate_up"] + sizes["down"]) / time / 1e3


def _sizes(config: LlamaConfig) -> dict[str, int]:
    """The size with which each row of the table grows: multiply-accumulates, or elements."""
    products = {name: outputs * inputs for name, (outputs, inputs) in fused_linears(config).items()}
    qkv_width = config.q_width + 2 * config.kv_width
    return {
        **products,
        "embedding": config.hidden_size,
        "qkv_bias": qkv_width if config.attention_bias else 0,
        "attention": config.q_width,
        "rope": config.q_width + config.kv_width,
        "rms_norm": config.hidden_size,
        "silu": config.intermediate_size,
    }
