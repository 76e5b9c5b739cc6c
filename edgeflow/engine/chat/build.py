"""Builds a chat plane from a configuration: model, KV slots, fixed prefixes, cost of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from edgeflow.clock import Clock
from edgeflow.config import ChatConfig, ChatSlot, ServiceConfig
from edgeflow.engine.chat.grammar import Grammars
from edgeflow.engine.chat.graphs import replayed
from edgeflow.engine.chat.plane import ChatPlane, Prefix, StepCost
from edgeflow.engine.chat.precision import choose_chat_dtype, choose_weights, row_error, weight_bytes
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.device import choose_device, choose_graphs
from edgeflow.engine.generate import FixedPrefix, Prefill, RunPass, run_pass
from edgeflow.engine.graphs import Record
from edgeflow.engine.memory import activation_bytes, free_bytes
from edgeflow.errors import ConfigError, RequestError
from edgeflow.ipc.messages import ChatReady, Message
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.kv_formats import CONFIGURED, DENSE, KVFormat
from edgeflow.model_paths import resolve_model
from edgeflow.models.chat import ChatModel, load_chat_model, read_published
from edgeflow.models.checkpoint import fingerprint
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.prompt import Prompt

REPEATS = 5
PROBE_ROWS = 64
WORTH_TELLING = 1e-3  # of the logits of a row by itself
# What two checkpoints must have in common for one to read what the other wrote.
_SHARED = ("num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size", "rope_theta", "rope")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltChat:
    """A loaded model with its KV slots; the fixed prefixes are computed."""

    name: str
    model: ChatModel
    kv: KVSlots
    prefixes: tuple[Prefix, ...]
    cost: StepCost
    fingerprint: str
    decode: ChatModel
    numbers: str
    run: RunPass = run_pass

    def plane(self, config: ChatConfig, clock: Clock, publish: Callable[[Message], None]) -> ChatPlane:
        """A chat plane over this model."""
        model = self.model
        grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, model.device)
        return ChatPlane(
            name=self.name,
            model=model,
            kv=self.kv,
            prefixes=self.prefixes,
            cost=self.cost,
            chunk=config.prefill_chunk,
            clock=clock,
            publish=publish,
            grammars=grammars,
            decode=self.decode,
            run=self.run,
        )

    def ready(self) -> ChatReady:
        """The message to the chat front with the limits and capabilities of this model."""
        defaults = self.model.generation
        return ChatReady(
            model=self.name,
            family=self.model.name,
            model_fingerprint=self.fingerprint,
            images=self.model.vision is not None,
            capacity=self.kv.capacity,
            slots=[prefix.slot_id for prefix in self.prefixes],
            kv_bytes=self.kv.nbytes,
            step_ns=self.cost.step_ns,
            row_ns=self.cost.row_ns,
            sampling=[defaults.temperature, defaults.top_p, defaults.min_p, defaults.repetition_penalty],
            top_k=defaults.top_k,
            numbers=self.numbers,
        )


def chat_bytes(config: ServiceConfig) -> int:
    """Memory that the configured chat model is expected to take, in bytes, by the headers of its files; 0 if none.

    Weights in the configured precision, KV slots, and the activations of a prompt's chunk.
    """
    path = config.chat_path
    if path is None:
        return 0
    chat = config.chat
    device = choose_device(config.device)
    dtype = choose_chat_dtype(chat.dtype, path, device)
    text = read_published(path).text
    paths = [path, *([resolve_model(chat.decode_model)] if chat.decode_model else [])]
    weights = sum(weight_bytes(chat.weights, each, dtype, device) for each in paths)
    capacity = min(chat.capacity, text.max_position_embeddings)
    kv = (1 + len(chat.slots)) * capacity * _position_bytes(text, dtype, CONFIGURED[chat.kv])
    return weights + kv + activation_bytes(text, chat.prefill_chunk, dtype)


def load_chat(config: ServiceConfig, progress: Progress, record: Record | None = None) -> BuiltChat | None:
    """Load the configured chat model; None where there is none. Typed StartErrors.

    record: shared with the control engine, whose graphs are on the same device; separate CUDA graphs if not given.
    """
    path = config.chat_path
    if path is None:
        return None
    device, chat = choose_device(config.device), config.chat
    dtype = choose_chat_dtype(chat.dtype, path, device)
    weights = choose_weights(chat, path, dtype, device)
    progress(weights.told, 1, 1)
    model = decode = load_chat_model(path, dtype, device, table=weights.table)
    if chat.decode_model:
        decode = load_chat_model(resolve_model(chat.decode_model), dtype, device, table=weights.table)
        _check_decode(model, decode)
    built = build_chat(config.chat, model, fingerprint(path), progress, decode=decode, weights=weights.told)
    if not choose_graphs(config.graphs, device, dtype):
        return built
    run, told = replayed(model, decode, built.kv, chat.prefill_chunk, required=config.graphs == "on", record=record)
    return replace(built, run=run, numbers=f"{built.numbers}, {told}")


def build_chat(
    config: ChatConfig,
    model: ChatModel,
    fingerprint: str,
    progress: Progress,
    *,
    decode: ChatModel | None = None,
    weights: str = "float weights",
) -> BuiltChat:
    """Reserve the slots, compute the prefixes, time a step; ConfigError says what does not fit.

    decode: computes the decode steps, over keys and values that `model` wrote; `model` itself if not given. weights:
    what the model was loaded with, for a person.
    """
    decode = decode or model
    capacity = min(config.capacity, model.config.max_position_embeddings)
    prompts = [_prefix_prompt(model, slot, capacity) for slot in config.slots]
    kv = _reserve(model, 1 + len(prompts), capacity, CONFIGURED[config.kv])
    prefixes = []
    for index, (slot, prompt) in enumerate(zip(config.slots, prompts, strict=True), start=1):
        fixed = FixedPrefix(prompt, index)
        for done in fixed.compute(model, kv, config.prefill_chunk):
            progress(f"prefix {slot.id}", done, len(prompt))
        prefixes.append(Prefix(slot.id, fixed))
    if model.device.type == "cuda":
        run_each_kind(model, kv, decode, config.prefill_chunk)
    cost = measure_step(model, kv, decode)
    off = row_error(decode, kv, _probe(decode, min(PROBE_ROWS, capacity)))
    numbers = f"{_name(kv.dtype)}, {weights}{_told(off)}, KV in {_name(kv.data.dtype)}"
    return BuiltChat(
        name=config.name,
        model=model,
        kv=kv,
        prefixes=tuple(prefixes),
        cost=cost,
        fingerprint=fingerprint,
        decode=decode,
        numbers=numbers,
    )


def _check_decode(model: ChatModel, decode: ChatModel) -> None:
    for name in _SHARED:
        ours, theirs = getattr(model.config, name), getattr(decode.config, name)
        if ours != theirs:
            raise ConfigError(f"chat.decode_model: {name} is {theirs}, that of chat.model is {ours}")


def measure_step(model: ChatModel, kv: KVSlots, decode: ChatModel) -> StepCost:
    """Measure the cost of a step: medians of a decode row and of a chunk, in slot 0."""
    rows = min(PROBE_ROWS, kv.capacity)
    probe = _probe(model, rows)
    one, many = (_timed(model, kv, probe, count) for count in (1, rows))
    step_ns = one if decode is model else _timed(decode, kv, probe, 1)
    return StepCost(step_ns, max((many - one) // max(rows - 1, 1), 0))


def _probe(model: ChatModel, rows: int) -> Prompt:
    return model.prompt([token % model.config.vocab_size for token in range(rows)])


def kv_bytes(model: ChatModel, slots: int, capacity: int, kv_format: KVFormat = DENSE) -> int:
    """Memory of so many slots in bytes."""
    return slots * capacity * _position_bytes(model.config, model.decoder.dtype, kv_format)


def _position_bytes(config: LlamaConfig, dtype: torch.dtype, kv_format: KVFormat) -> int:
    """Memory of a position in all layers."""
    return config.num_hidden_layers * kv_format.position_bytes(config.num_key_value_heads, config.head_dim, dtype)


def _timed(model: ChatModel, kv: KVSlots, probe: Prompt, rows: int) -> int:
    times = []
    for _ in range(REPEATS):
        prefill = Prefill(model, probe, 0)
        started_ns = time.perf_counter_ns()
        run_pass(model.decoder, kv, [prefill.rows(rows, samples=True)])
        times.append(time.perf_counter_ns() - started_ns)
    return round(median(times))


def _reserve(model: ChatModel, slots: int, capacity: int, kv_format: KVFormat) -> KVSlots:
    needed, free = kv_bytes(model, slots, capacity, kv_format), free_bytes(model.device)
    config, layers = model.config, model.config.num_hidden_layers
    layer_bytes = _position_bytes(config, model.decoder.dtype, kv_format) // layers
    error = ConfigError(
        f"chat.capacity: no memory for {slots} slots of {capacity} positions: {layers} layers x {slots} x {capacity} "
        f"x {layer_bytes} bytes per position are {needed / 2**20:.0f} MiB, "
        f"{free / 2**20:.0f} MiB are free; lower chat.capacity or the number of chat.slots"
        + (", or choose chat.kv int8" if kv_format is DENSE else "")
    )
    if needed > free:
        raise error
    try:
        return model.decoder.kv_slots(slots, capacity, kv_format)
    except (RuntimeError, MemoryError) as cause:
        raise error from cause


def _told(error: float) -> str:
    return f", {error:.1%} of the logits' spread off" if error >= WORTH_TELLING else ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _prefix_prompt(model: ChatModel, slot: ChatSlot, capacity: int) -> Prompt:
    key = f"chat.slots {slot.id}"
    try:
        if slot.messages:
            text = model.render([message.model_dump() for message in slot.messages], answer=False)
            prompt = model.chat_prompt(text)
        else:
            prompt = model.text_prompt(slot.text)
    except RequestError as error:
        raise ConfigError(f"{key}: {error.text}") from error
    if len(prompt) >= capacity:
        raise ConfigError(f"{key}: has {len(prompt)} tokens, chat.capacity is {capacity}")
    return prompt
