"""The memory that a chat model takes beside its weights: computed before the start, and again where slots are reserved.

Each part is the same whatever is asked later; tests compare those that are reserved at the start with their tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgeflow.config_sections import ChatConfig
from edgeflow.engine.chat.long import SlotSize, pairs_format
from edgeflow.engine.memory import activation_bytes, widened_bytes, written_bytes
from edgeflow.kernels.kv.tensors import KVShape
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate.files import GateHeader, MemoryGate

FLOAT_BYTES, LONG_BYTES, DOUBLE_BYTES = 4, 8, 8
READ_FLOATS = 4
"""Numbers in float32 for each number of a query that reads a memory: feature, sums, read and one on the way."""
FOLD_FLOATS = 3
"""Numbers in float32 for each number of a key that is folded: feature, value and one on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes beside the weights. slots: how many. slot_bytes: keys, values and memory of one slot; state_bytes: its
    tokens and what sampling knows of them. rotation_bytes: of all positions. pass_bytes: during the largest pass.
    """

    slots: int
    slot_bytes: int
    state_bytes: int
    rotation_bytes: int
    pass_bytes: int

    @property
    def beside_bytes(self) -> int:
        """The need beside the slots' keys, values and memories."""
        return self.slots * self.state_bytes + self.rotation_bytes + self.pass_bytes

    @property
    def total_bytes(self) -> int:
        return self.slots * self.slot_bytes + self.beside_bytes


def memory_need(
    config: ChatConfig,
    text: LlamaConfig,
    gate: GateHeader | MemoryGate | None,
    dtype: torch.dtype,
    device: torch.device,
    *,
    replays: bool,
) -> MemoryNeed:
    """The need of a model as configured; ConfigError for a format that is not for it.

    replays: passes are replayed, which takes one more slot.
    """
    size = SlotSize.of(config, text, gate)
    turned = size.length if gate is None or gate.rules.positions == "absolute" else size.positions
    return MemoryNeed(
        slots=1 + len(config.slots) + replays,
        slot_bytes=size.slot_bytes(text, dtype, pairs_format(config, text)),
        state_bytes=_state_bytes(size, text.vocab_size),
        rotation_bytes=(1 + bool(config.decode_model)) * _rotation_bytes(turned, text.attention.rotary, dtype),
        pass_bytes=_pass_bytes(config, text, gate, size.shape(text, dtype), device),
    )


def _state_bytes(size: SlotSize, vocabulary: int) -> int:
    """The state of a slot: a token for each place, a share for each position, a count and a flag for each id."""
    ids, shares = LONG_BYTES * (size.positions + 1), DOUBLE_BYTES * (size.length + 1)
    return ids + shares + (FLOAT_BYTES + 1) * vocabulary


def _rotation_bytes(positions: int, rotary: int, dtype: torch.dtype) -> int:
    """A decoder's cosines [P, r] and sines [P, r / 2]."""
    return positions * (rotary + rotary // 2) * dtype.itemsize


def _pass_bytes(
    config: ChatConfig,
    text: LlamaConfig,
    gate: GateHeader | MemoryGate | None,
    shape: KVShape,
    device: torch.device,
) -> int:
    """A chunk's intermediate results, its slot written and widened, and what reading a memory and folding take, all at
    once."""
    chunk, dtype, pairs = config.prefill_chunk, shape.dtype, pairs_format(config, text)
    slot = widened_bytes(pairs, shape, device) + written_bytes(pairs, shape, rows=chunk, spans=1)
    common = activation_bytes(text, chunk, dtype) + slot
    if gate is None:
        return common
    width, rules = text.head_dim, gate.rules
    of_a_head = READ_FLOATS * FLOAT_BYTES * width + (2 * width + 2 * gate.mlp_hidden) * dtype.itemsize
    folded = rules.segment + (rules.sink if rules.memory_content == "sink_and_segment" else 0)
    fold = FOLD_FLOATS * FLOAT_BYTES * folded * text.kv_width
    return common + chunk * text.num_attention_heads * of_a_head + fold
