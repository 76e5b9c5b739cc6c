"""The memory that a chat model takes beside its weights: computed before the start, and again where slots are reserved.

Each part is the same whatever is asked later; tests compare those that are reserved at the start with their tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgeflow.config_sections import ChatConfig
from edgeflow.engine.chat.long import SlotSize, pairs_format
from edgeflow.engine.drafts.sizes import DraftSizes
from edgeflow.engine.memory import activation_bytes, widened_bytes, written_bytes
from edgeflow.kernels.kv.formats import KVShape
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateHeader, MemoryGate

FLOAT_BYTES, LONG_BYTES, DOUBLE_BYTES = 4, 8, 8
TREE_LONGS = 3
"""Whole numbers for each row of a tree."""
SCORE_FLOATS = 2
"""Numbers in float32 for each log probability of a head: itself, and one derived from it."""
DRAWN_FLOATS = 12
"""Numbers in float32 for each logit of a row that is drawn: in the search for top-p and in penalties, at the most."""
READ_FLOATS = 4
"""Numbers in float32 for each number of a query that reads a memory: feature, sums, read and one on the way."""
FOLD_FLOATS = 3
"""Numbers in float32 for each number of a key that is folded: feature, value and one on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes beside the weights. slots: how many. slot_bytes: keys, values and memory of one slot; state_bytes: its
    tokens, its drafts, and what sampling knows of them. rotation_bytes: of all positions. pass_bytes: during the
    largest pass. draft_bytes: of a draft head, its slots and rotations.
    """

    slots: int
    slot_bytes: int
    state_bytes: int
    rotation_bytes: int
    pass_bytes: int
    draft_bytes: int

    @property
    def beside_bytes(self) -> int:
        """The need beside the slots' keys, values and memories."""
        return self.slots * self.state_bytes + self.rotation_bytes + self.pass_bytes + self.draft_bytes

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
    draft: DraftSizes | None = None,
) -> MemoryNeed:
    """The need of a model as configured; ConfigError for a format that is not for it.

    replays: passes are replayed, which takes one more slot. draft: the drafts that passes verify.
    """
    size = SlotSize.of(config, text, gate)
    absolute = gate is not None and gate.rules.positions == "absolute"
    turned = size.length if absolute else size.positions
    slots, rows = 1 + len(config.slots) + replays, 1 if draft is None else draft.most_rows
    of_pass = _pass_bytes(config, text, gate, size.shape(text, dtype), device)
    return MemoryNeed(
        slots=slots,
        slot_bytes=size.slot_bytes(text, dtype, pairs_format(config, text)),
        state_bytes=_state_bytes(size, text.vocab_size, rows),
        rotation_bytes=(1 + bool(config.decode_model)) * _rotation_bytes(turned, text.attention.rotary, dtype),
        pass_bytes=of_pass + (0 if draft is None else _verified_bytes(draft, text, config.prefill_chunk, dtype)),
        draft_bytes=0 if draft is None else _draft_bytes(draft, slots, size.positions, turned, dtype),
    )


def _state_bytes(size: SlotSize, vocabulary: int, rows: int) -> int:
    """The state of a slot: a token for each place, a share for each position, a count and a flag for each id.

    rows: of a verification; each is a place more, and a row of a tree with its parent, depth and bits.
    """
    ids, shares = LONG_BYTES * (size.positions + rows), DOUBLE_BYTES * (size.length + rows)
    return ids + shares + TREE_LONGS * LONG_BYTES * rows + (FLOAT_BYTES + 1) * vocabulary


def _draft_bytes(draft: DraftSizes, slots: int, positions: int, turned: int, dtype: torch.dtype) -> int:
    """A head's keys and values, rotations, and the token of the base for each that it can propose; 0 without a head.

    positions: of a slot of the base. turned: by how many different ones the base's rows are rotated.
    """
    if draft.head is None:
        return 0
    text = draft.head.text
    capacity = rounded_capacity(positions + draft.behind)
    kept = slots * capacity * 2 * text.kv_width * dtype.itemsize
    rotations = _rotation_bytes(turned + capacity - positions, text.attention.rotary, dtype)
    return kept + rotations + LONG_BYTES * draft.head.draft_vocabulary


def _verified_bytes(draft: DraftSizes, text: LlamaConfig, chunk: int, dtype: torch.dtype) -> int:
    """Logits of a verification, and its scores on the way to tokens; the base's features of all rows of a pass, the
    head's intermediate results, and its log probabilities, all at once.
    """
    logits = draft.most_rows * text.vocab_size * (dtype.itemsize + DRAWN_FLOATS * FLOAT_BYTES)
    if draft.head is None:
        return logits
    head, rows = draft.head, max(chunk, draft.most_rows)
    features = rows * head.feature_width * dtype.itemsize
    activations = activation_bytes(head.text, rows, dtype) + rows * 2 * head.text.hidden_size * dtype.itemsize
    scores = max(draft.width, 1) * head.draft_vocabulary * (dtype.itemsize + SCORE_FLOATS * FLOAT_BYTES)
    return logits + features + activations + scores


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
