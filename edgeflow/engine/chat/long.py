"""The slots of a chat model, and the memory gate that lets a prompt be longer than one (docs/long_context.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgeflow.config_sections import ChatConfig
from edgeflow.ipc.chat_messages import LongSlots
from edgeflow.kernels.kv.formats import KVFormat, KVShape, MemoryRules, configured_format, slot_bytes
from edgeflow.kernels.kv.memory import MemoryKV
from edgeflow.kernels.kv.memory import memory_bytes as bytes_of_a_layer
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.models.chat import read_published, unfit_for_gates
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateHeader, GateRules, MemoryGate, base_fingerprint, gate_header
from edgeflow.scheduler.folding import Folding
from edgeflow_client.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSize:
    """The size of a slot. positions: places of keys and values. memory_bytes: of M and z, 0 without a gate. length: the
    most tokens of a prompt and its answer.
    """

    positions: int
    memory_bytes: int
    length: int

    @classmethod
    def of(cls, config: ChatConfig, text: LlamaConfig, gate: MemoryGate | GateHeader | None) -> SlotSize:
        """The slots of a model as configured; with a gate their size does not depend on the length of a prompt."""
        if gate is None:
            positions = min(config.capacity, text.max_position_embeddings)
            return cls(positions=positions, memory_bytes=0, length=positions)
        positions = rounded_capacity(gate.rules.threshold)
        return cls(positions=positions, memory_bytes=memory_bytes(text), length=config.long.most_tokens)

    def slot_bytes(self, text: LlamaConfig, dtype: torch.dtype, pairs: KVFormat) -> int:
        """The memory of a slot in all layers, that of its sequence included, in bytes. pairs: as of `pairs_format`."""
        return slot_bytes(pairs, self.shape(text, dtype)) + self.memory_bytes

    def shape(self, text: LlamaConfig, dtype: torch.dtype) -> KVShape:
        """The sizes of the store."""
        return KVShape(
            layers=text.num_hidden_layers,
            capacity=self.positions,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            dtype=dtype,
        )

    def told(self, gate: MemoryGate | None) -> LongSlots | None:
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
    """Read the configured gate; None if none is configured. path and errors: as of `long_header`, which comes first."""
    header = long_header(config, path)
    return None if header is None else header.read(read_published(path).text, dtype, device)


def memory_bytes(text: LlamaConfig) -> int:
    """The memory of a slot beside its positions: M [K, D, D] and z [K, D] in every layer, in bytes."""
    return text.num_hidden_layers * bytes_of_a_layer(text.num_key_value_heads, text.head_dim)


def pairs_format(config: ChatConfig, text: LlamaConfig) -> KVFormat:
    """How slots of a model store keys and values; ConfigError for a format that is not for this model."""
    return configured_format("chat.kv", config.kv, text.attention.kv_format)


def store_format(config: ChatConfig, text: LlamaConfig, gate: MemoryGate | None) -> KVFormat:
    """How slots of a model store what they hold, a memory included; ConfigError as of `pairs_format`."""
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
    """A gate in the model's folder, or else in the working directory; in the latter alone with ./ or ../ before it."""
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
        told = " + ".join(f"{each} {size}" for each, size in sizes.items())
        raise ConfigError(f"chat.long: {told} = {rules.threshold} tokens are more than a slot holds: {name} is {most}")
    length = config.long.most_tokens
    if rules.threshold > length:
        raise ConfigError(
            f"chat.long.length: {length} is less than the {rules.threshold} tokens from which prompts are folded"
        )
