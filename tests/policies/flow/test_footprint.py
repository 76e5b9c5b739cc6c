"""The memory of a flow policy's weights, from the headers of its files."""

from __future__ import annotations

from edgeflow.policies.flow.published import WeightNumbers

PARTS = {"decoder": ("stack.",), "floats": ("tower.",), "unused": ("lm_head",)}


def test_weights_in_4_bits_are_counted_in_bytes():
    """A stored word of zero points has eight of them, which take a byte each in memory."""
    outputs, inputs, group = 48, 128, 32
    others = {"tower.w": (3, 5), "norm": (7,), "lm_head.w": (1000,)}
    floats = {"stack.q_proj.weight": (outputs, inputs), **others}
    four = {
        "stack.q_proj.qweight": (inputs, outputs // 8),
        "stack.q_proj.qzeros": (inputs // group, outputs // 8),
        "stack.q_proj.scales": (inputs // group, outputs),
        **others,
    }
    assert WeightNumbers.of(floats, **PARTS) == WeightNumbers(decoder=outputs * inputs, floats=15, others=7)
    held = outputs * (inputs // 2 + 3 * inputs // group)
    assert WeightNumbers.of(four, **PARTS) == WeightNumbers(decoder=0, floats=15, others=7, quantised=held)
