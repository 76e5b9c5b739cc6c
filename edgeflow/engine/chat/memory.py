"""The memory of a chat model, computed before the start and again where slots are reserved: weights, slots, passes, and
the gate that lets a prompt be longer than a slot (docs/chat/long-context.md).

No part depends on later requests; tests compare the parts that are reserved at the start with their tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat.precision import AUTO
from edgeflow.engine.drafts.kinds import DraftSizes
from edgeflow.engine.memory import activation_bytes, widened_bytes, written_bytes
from edgeflow.ipc.chat_messages import LongSlots
from edgeflow.kernels.kv.formats import KVFormat, KVShape, MemoryRules, configured_format, slot_bytes
from edgeflow.kernels.kv.memory import MemoryKV
from edgeflow.kernels.kv.memory import memory_bytes as bytes_of_a_layer
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.linear import packed_dtypes
from edgeflow.kernels.weights import FLOAT, Int8Weight
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateHeader, GateRules, MemoryGate, base_fingerprint, gate_header
from edgeflow.models.published import read_published, unfit_for_gates
from edgeflow.models.quantization import PARTS, quantised_bytes
from edgeflow.scheduler.folding import Folding
from edgeflow_client.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSize:
    """The size of a slot."""

    positions: int
    """Positions that hold keys and values."""
    memory_bytes: int
    """Bytes of its memory, M and z; 0 without a gate."""
    length: int
    """The most tokens of a prompt and its answer."""

    @classmethod
    def of(cls, config: ChatConfig, text: LlamaConfig, gate: MemoryGate | GateHeader | None) -> SlotSize:
        """The slots of a model as configured; with a gate their size does not depend on the length of a prompt."""
        if gate is None:
            positions = min(config.capacity, text.max_position_embeddings)
            return cls(positions=positions, memory_bytes=0, length=positions)
        positions = rounded_capacity(gate.rules.threshold)
        return cls(positions=positions, memory_bytes=memory_bytes(text), length=config.long.most_tokens)

    def slot_bytes(self, text: LlamaConfig, dtype: torch.dtype, pairs: KVFormat) -> int:
        """The memory of a slot in all layers, that of its sequence included, in bytes. pairs: as in `pairs_format`."""
        return slot_bytes(pairs, text.kv_shape(dtype, self.positions)) + self.memory_bytes

    def long_slots(self, gate: MemoryGate | None) -> LongSlots | None:
        """The sizes for the chat front; None without a gate."""
        if gate is None:
            return None
        rules = gate.rules
        return LongSlots(sink=rules.sink, window=rules.window, segment=rules.segment, memory_bytes=self.memory_bytes)


def long_header(config: ChatConfig, path: Path) -> GateHeader | None:
    """The configured gate by its headers, with the sizes that the configuration gives; None if none is configured.

    path: the base's folder; a gate in it belongs to that base, whether or not it states a fingerprint. ConfigError or
    CheckpointError, each with both values, for a gate that does not fit the base or whose sizes do not fit a slot. No
    weight is loaded.
    """
    if not config.long.gate:
        return None
    published = read_published(path)
    found = _gate_path(config.long.gate, path)
    if unfit := unfit_for_gates(published):
        raise ConfigError(f"chat.long.gate: {found} cannot serve chat.model {path.name}, {unfit}")
    known_by = base_fingerprint(path)
    header = gate_header(found, published.text, base_fingerprint=known_by)
    sizes: dict[str, Any] = config.long.sizes
    rules = replace(header.rules, **sizes)
    _check_sizes(rules, config, published.text)
    belongs_to = known_by if header.path.parent.resolve() == path.resolve() else header.base_fingerprint
    return replace(header, rules=rules, base_fingerprint=belongs_to)


def read_long(config: ChatConfig, path: Path, device: torch.device, dtype: torch.dtype) -> MemoryGate | None:
    """Read the configured gate; None if none is configured. path and errors: as in `long_header`, which comes first."""
    header = long_header(config, path)
    return None if header is None else header.read(read_published(path).text, dtype, device)


def memory_bytes(text: LlamaConfig) -> int:
    """The memory of a slot beside its positions: M [K, D, D] and z [K, D] in every layer, in bytes."""
    return text.num_hidden_layers * bytes_of_a_layer(text.num_key_value_heads, text.head_dim)


def pairs_format(config: ChatConfig, text: LlamaConfig) -> KVFormat:
    """The format of keys and values in a model's slots; ConfigError for a format that is not for this model."""
    return configured_format("chat.kv", config.kv, text.attention.kv_format)


def store_format(config: ChatConfig, text: LlamaConfig, gate: MemoryGate | None) -> KVFormat:
    """The KV format of a model's slots, a memory included; ConfigError as in `pairs_format`."""
    return pairs_format(config, text) if gate is None else memory_format(gate, config.long.most_tokens)


def memory_format(gate: MemoryGate, positions: int) -> MemoryKV:
    """The format of slots with this gate. positions: the longest sequence, in tokens."""
    rules = gate.rules
    of_slots = MemoryRules(
        sink=rules.sink,
        segment=rules.segment,
        activation=rules.activation,
        eps=rules.eps,
        with_sink=rules.memory_content == "sink_and_segment",
        absolute=rules.positions == "absolute",
    )
    return MemoryKV(of_slots, gate.layers, positions)


def folding_of(rules: GateRules) -> Folding:
    """How requests go through slots under these rules."""
    return Folding(
        sink=rules.sink,
        window=rules.window,
        segment=rules.segment,
        keeps_pairs=rules.fold == "cached",
        gates_first=rules.first_segment == "zero",
    )


def remarks(gate: MemoryGate | None, config: ChatConfig, text: LlamaConfig) -> list[str]:
    """Remarks on the gate for the start: prompts that leave the positions that the base was trained with, and a base
    that the gate was not compared with.
    """
    if gate is None:
        return []
    trained, length, found = text.max_position_embeddings, config.long.most_tokens, []
    if gate.rules.positions == "absolute" and length > trained:
        found.append(f"prompts of up to {length} tokens leave the {trained} positions of the base")
    if not gate.base_fingerprint:
        found.append("gate not compared with its base: gate.json has no base_fingerprint")
    return found


def _gate_path(gate: str, model: Path) -> Path:
    """A gate in the model's folder, or else in the working directory; only there with ./ or ../ before it."""
    here, inside = Path(gate), model / gate
    if inside.exists() and not gate.startswith(("./", "../")):
        return inside
    if not here.exists():
        raise ConfigError(f"chat.long.gate: neither {inside} nor {here.absolute()} exists")
    return here


def _check_sizes(rules: GateRules, config: ChatConfig, text: LlamaConfig) -> None:
    limits = {"chat.capacity": config.capacity, "max_position_embeddings of the base": text.max_position_embeddings}
    name, most = min(limits.items(), key=lambda limit: limit[1])
    sizes = {each: getattr(rules, each) for each in ("sink", "window", "segment")}
    for each, size in sizes.items():
        if size > most:
            raise ConfigError(f"chat.long.{each}: {size} is more than a slot holds: {name} is {most}")
    if rules.threshold > most:
        sum_of_sizes = " + ".join(f"{each} {size}" for each, size in sizes.items())
        raise ConfigError(
            f"chat.long: {sum_of_sizes} = {rules.threshold} tokens are more than a slot holds: {name} is {most}"
        )
    length = config.long.most_tokens
    if rules.threshold > length:
        raise ConfigError(
            f"chat.long.length: {length} is less than the {rules.threshold} tokens from which prompts are folded"
        )


FLOAT_BYTES, LONG_BYTES, DOUBLE_BYTES = 4, 8, 8
TREE_LONGS = 3
"""Integers for each row of a tree."""
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
    """Memory that a chat model takes beside its weights."""

    slots: int
    """The number of slots."""
    slot_bytes: int
    """Bytes of keys, values and memory of one slot."""
    state_bytes: int
    """Bytes of one slot's tokens, drafts and sampling state."""
    rotation_bytes: int
    """Bytes of the rotations of all positions."""
    pass_bytes: int
    """Bytes of intermediate results during the largest pass."""
    draft_bytes: int
    """Bytes of a draft head's slots and rotations."""

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
    of_pass = _pass_bytes(config, text, gate, text.kv_shape(dtype, size.positions), device)
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
    capacity = rounded_capacity(positions + draft.extra_places)
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


def weight_bytes(weights: str, path: Path, dtype: torch.dtype, device: torch.device, head: str = FLOAT) -> int:
    """The memory of a checkpoint's loaded weights in bytes; `auto`: the larger of its choices.

    Weights that are stored in 4 bits stay so, but for those that attention absorbs, which are always floats. int8
    weights are stored beside those in `dtype`. fp8 weights replace those of the projections and the head; they take one
    byte each on CUDA and, being emulated, as many as `dtype` on a CPU. A head in int8 takes a byte per weight and its
    scales, and replaces the embedding if it is tied; a tied float head is stored apart from it where it is packed.
    Other scales are not counted, and neither are second copies of float weights for which an operator overlay chooses
    several implementations; of quantised ones there are none (kernels/table/bind_linear.py).
    """
    published = read_published(path)
    text = published.text
    shapes = _as_held(tensor_shapes(path), text)
    quantised = quantised_bytes(shapes)
    floats = sum(math.prod(shape) for name, shape in shapes.items() if name not in quantised)
    of_head = text.vocab_size * text.hidden_size
    held = sum(quantised.values())
    if head == Int8Weight.format:
        floats -= of_head
        held += of_head + text.vocab_size * FLOAT_BYTES
    packs = device.type == "cpu" and dtype in packed_dtypes()
    apart = of_head if head == FLOAT and text.tie_word_embeddings else 0
    plain = held + (floats + apart * packs) * dtype.itemsize
    stored = AUTO[device.type] if weights == "auto" else weights
    if stored == FLOAT or published.quantization is not None:
        return plain
    if stored == Int8Weight.format:
        return plain + floats
    attention = sum(math.prod(shape) for shape in text.attention.linears.values())
    projections = text.num_hidden_layers * (attention + 3 * text.hidden_size * text.intermediate_size)
    converted = projections + (of_head if head == FLOAT else 0)
    size = 1 if device.type == "cuda" else dtype.itemsize
    return held + (floats - converted + apart) * dtype.itemsize + converted * size


def _as_held(shapes: Mapping[str, tuple[int, ...]], text: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors as loaded: a projection that attention absorbs is read as floats, however it is stored."""
    held = dict(shapes)
    for name in shapes:
        module, _, part = name.rpartition(".")
        shape = text.attention.absorbed.get(module.rpartition(".")[2])
        if part in PARTS and shape is not None:
            del held[name]
            held[f"{module}.weight"] = shape
    return held
