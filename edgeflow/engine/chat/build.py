"""Builds a chat loop from a configuration: model, KV slots, fixed prefixes, cost of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.config.chat import ChatConfig, ChatSlot
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import KVName
from edgeflow.engine.chat.engine import ChatEngine, recorded_shapes
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.chat.grammar import Grammars
from edgeflow.engine.chat.loop import ChatLoop
from edgeflow.engine.chat.memory import (
    MemoryNeed,
    SlotSize,
    folding_of,
    long_header,
    memory_need,
    read_long,
    remarks,
    store_format,
    weight_bytes,
)
from edgeflow.engine.chat.precision import choose_chat_dtype, choose_weights, row_error
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.drafts.kinds import DraftKind, choose_drafts, draft_sizes, eagle_header, sizes_of
from edgeflow.engine.exported.chat import check_exported_chat, read_exported_chat
from edgeflow.engine.graphs import Progress, Record, record_passes
from edgeflow.engine.memory import RECORDING_BYTES, free_bytes
from edgeflow.engine.placement import check_kv, choose_device, choose_graphs, runtime_of
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import SamplingKind
from edgeflow.engine.shapes import ShapeClasses
from edgeflow.ipc.chat_messages import ChatReady, LongSlots
from edgeflow.ipc.messages import Message
from edgeflow.kernels.kv.formats import CONFIGURED, DENSE, LATENT, KVFormat, KVShape, slot_bytes
from edgeflow.kernels.kv.memory import MemoryKV
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.model_paths import resolve_model
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.checkpoint import fingerprint
from edgeflow.models.memory_gate import MemoryGate
from edgeflow.models.prompt import Prompt
from edgeflow.models.published import read_published
from edgeflow.scheduler.cost import ChunkTimes
from edgeflow_client.clock import Clock
from edgeflow_client.errors import ConfigError, RequestError

REPEATS = 5
ANOTHER_KIND = SamplingKind(drawn=True)  # a checkpoint may recommend it
PROBE_ROWS = 64
WORTH_TELLING = 1e-3  # error of the logits of a row by itself, from which on it is reported
# What two checkpoints must have in common for one to read what the other wrote.
_SHARED = ("num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size", "rope_theta", "rope", "latent")

EXPORTED = "exported graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltChat:
    """A loaded model with its KV slots and computed prefixes."""

    name: str
    engine: ChatEngine
    prefixes: dict[str, FixedPrefix]
    """The fixed prefixes by the id of their slot."""
    times: ChunkTimes
    fingerprint: str
    numbers: str
    """A line about precision, KV format and recordings, for a person."""
    length: int
    """The most tokens of a prompt and its answer."""
    long: LongSlots | None
    """The sizes of slots with a memory; None without a gate."""

    def loop(self, config: ChatConfig, clock: Clock, publish: Callable[[Message], None]) -> ChatLoop:
        """The chat loop over this model."""
        model = self.engine.model
        grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, model.device)
        return ChatLoop(
            name=self.name,
            engine=self.engine,
            prefixes=self.prefixes,
            times=self.times,
            chunk=config.prefill_chunk,
            clock=clock,
            publish=publish,
            grammars=grammars,
        )

    def ready(self) -> ChatReady:
        """The message to the chat front with the limits and capabilities of this model."""
        model, kv = self.engine.model, self.engine.kv
        defaults = model.generation
        return ChatReady(
            model=self.name,
            family=model.name,
            model_fingerprint=self.fingerprint,
            images=model.vision is not None,
            length=self.length,
            capacity=kv.capacity,
            long=self.long,
            slots=list(self.prefixes),
            slot_bytes=kv.nbytes // kv.slots,
            kv_bytes=kv.nbytes,
            step_ns=self.times.step_ns,
            row_ns=self.times.row_ns,
            sampling=[defaults.temperature, defaults.top_p, defaults.min_p, defaults.repetition_penalty],
            top_k=defaults.top_k,
            numbers=self.numbers,
            draft=self.engine.drafts.name if self.engine.drafts is not None else "",
        )


def chat_bytes(config: ServiceConfig, device: torch.device | None = None) -> int:
    """Memory that the configured chat model is expected to take, in bytes, by the headers of its files; 0 if none.

    device: None for the configured one; a device that this machine lacks is only computed for.

    Weights in the configured precision, the gate, what slots and passes take (memory.py), and recordings.
    StartErrors for a KV format that this device lacks, and for a gate or an EAGLE-3 head that cannot serve this model.
    """
    path = config.chat_path
    if path is None:
        return 0
    chat = config.chat
    device = choose_device(config.device) if device is None else device
    if is_artifact(path):
        exported = read_exported_chat(path)
        check_exported_chat(chat, exported, device)
        choose_graphs(config.graphs, device, torch.float32)
        return (
            exported.loaded_bytes
            + memory_need(chat, exported.text, None, torch.float32, device, replays=False).total_bytes
        )
    check_kv(CONFIGURED[chat.kv], device, section="chat.")
    dtype = choose_chat_dtype(chat.dtype, path, device)
    text, gate = read_published(path).text, long_header(chat, path)
    head = eagle_header(chat, text)
    paths = [path, *([resolve_model(chat.decode_model)] if chat.decode_model else [])]
    weights = sum(weight_bytes(chat.weights, each, dtype, device, chat.head) for each in paths)
    weights += gate.parameters * dtype.itemsize if gate is not None else 0
    weights += head.parameters * dtype.itemsize if head is not None else 0
    replays = choose_graphs(config.graphs, device, dtype)
    draft = draft_sizes(chat, head)
    need = memory_need(chat, text, gate, dtype, device, replays=replays, draft=draft)
    positions, verified = SlotSize.of(chat, text, gate).positions, draft.rows if draft is not None else None
    classes = ShapeClasses.of_requests(chat.prefill_chunk, positions, verified)
    recordings = len(recorded_shapes(classes, ANOTHER_KIND, gated=gate is not None)) if replays else 0
    return weights + need.total_bytes + recordings * RECORDING_BYTES


def load_chat(config: ServiceConfig, progress: Progress, record: Record | None = None) -> BuiltChat | None:
    """Load the configured chat model; None where there is none. Typed StartErrors.

    `chat_bytes` is called first: it rejects what can be rejected without weights.

    record: shared with the control engine, whose graphs are on the same device; separate CUDA graphs if not given.
    """
    path = config.chat_path
    if path is None:
        return None
    device, chat = choose_device(config.device), config.chat
    if is_artifact(path):
        progress(EXPORTED, 1, 1)
        exported = read_exported_chat(path).load(runtime_of(config))
        return build_chat(chat, exported, fingerprint(path), progress, weights=EXPORTED)
    dtype = choose_chat_dtype(chat.dtype, path, device)
    gate = read_long(chat, path, device, dtype)
    weights = choose_weights(chat, path, dtype, device, config.torch_threads)
    progress(weights.line, 1, 1)
    model = decode = load_chat_model(path, dtype, device, table=weights.table, head=chat.head)
    if chat.decode_model:
        decode_path = resolve_model(chat.decode_model)
        decode = load_chat_model(decode_path, dtype, device, table=weights.table, head=chat.head)
        _check_decode(model, decode)
    drafts = choose_drafts(chat, model, weights.format)
    graphs = "" if not choose_graphs(config.graphs, device, dtype) else config.graphs
    return build_chat(
        chat,
        model,
        fingerprint(path),
        progress,
        decode=decode,
        gate=gate,
        drafts=drafts,
        weights=weights.line,
        table=weights.table,
        graphs=graphs,
        record=record,
    )


def build_chat(
    config: ChatConfig,
    model: ChatModel,
    fingerprint: str,
    progress: Progress,
    *,
    decode: ChatModel | None = None,
    gate: MemoryGate | None = None,
    drafts: DraftKind | None = None,
    weights: str = "float weights",
    table: OperatorTable | None = None,
    graphs: str = "",
    record: Record | None = None,
) -> BuiltChat:
    """Reserve the slots, compute the prefixes, record and time passes; ConfigError says what does not fit.

    decode: computes the decode steps, over keys and values that `model` wrote; `model` itself if not given. gate: of
    this model, for prompts longer than a slot. drafts: how answers are drafted. weights: what the model was loaded
    with, for a person. table: chooses its operators. graphs: replay passes; `on` is an error where that cannot be.
    """
    size = SlotSize.of(config, model.config, gate)
    limit = f"chat.{'capacity' if gate is None else 'long.length'} is {size.length}"
    prompts = [_prefix_prompt(model, slot, size.length, limit) for slot in config.slots]
    need = memory_need(
        config, model.config, gate, model.network.dtype, model.device, replays=bool(graphs), draft=sizes_of(drafts)
    )
    kv = _reserve(model, need, size, store_format(config, model.config, gate))
    chunk = config.prefill_chunk
    folding = None if gate is None else folding_of(gate.rules)
    engine = ChatEngine(
        model,
        kv,
        decode=decode,
        folding=folding,
        drafts=drafts,
        chunk=chunk,
        graphs=bool(graphs),
        table=table,
        record=record,
    )
    graphs_line = record_passes(engine, progress, required=graphs == "on", name="chat graphs")
    engine.seal()
    prefixes = {}
    for index, (slot, prompt) in enumerate(zip(config.slots, prompts, strict=True), start=1):
        fixed = FixedPrefix(prompt, index)
        try:
            for done in fixed.compute(engine, chunk):
                progress(f"prefix {slot.id}", done, len(prompt))
        except RequestError as error:
            raise ConfigError(f"chat.slots {slot.id}: {error.text}") from error
        prefixes[slot.id] = fixed
    if model.device.type == "cuda":
        run_each_kind(engine, chunk)
    times = measure_times(engine, chunk)
    if drafts is not None:
        engine.row_permille, engine.row_growth = measure_row(engine, min(drafts.rows, chunk))
    off = row_error(engine.decode, kv, _probe(engine.decode, min(PROBE_ROWS, size.positions)))
    numbers = f"{_name(kv.dtype)}, {weights}{_error_text(off)}, {_kv(kv)}"
    return BuiltChat(
        name=config.name,
        engine=engine,
        prefixes=prefixes,
        times=times,
        fingerprint=fingerprint,
        numbers=", ".join(filter(None, (numbers, graphs_line, *remarks(gate, config, model.config)))),
        length=size.length,
        long=size.long_slots(gate),
    )


def _check_decode(model: ChatModel, decode: ChatModel) -> None:
    for name in _SHARED:
        ours, theirs = getattr(model.config, name), getattr(decode.config, name)
        if ours != theirs:
            raise ConfigError(f"chat.decode_model: {name} is {theirs}, that of chat.model is {ours}")


def measure_times(engine: ChatEngine, chunk: int) -> ChunkTimes:
    """Measure passes as they are served: medians of a decode row and of a chunk, in slot 0.

    The text is too short to be folded: a fold in place of a decode row would run a whole window.
    """
    longest = engine.placement.unfolded(engine.kv.capacity)
    rows = max(min(PROBE_ROWS, chunk, longest - 1), 1)
    one, many, step_ns = (median(times) for times in zip(*(_timed(engine, rows) for _ in range(REPEATS)), strict=True))
    return ChunkTimes(round(step_ns), max(round(many - one) // max(rows - 1, 1), 0))


def measure_row(engine: ChatEngine, rows: int) -> tuple[int, int]:
    """The time of one more row of a verification, per mille of a pass of one, at the start of a slot, and how much more
    it is at its end: from chunks of as many rows."""
    longest = engine.placement.unfolded(engine.kv.capacity) - 1
    rows = max(min(rows, longest), 2)
    start, end = (_row_permille(engine, rows, place) for place in (0, max(longest - rows, 0)))
    return start, end - start


def _row_permille(engine: ChatEngine, rows: int, place: int) -> int:
    timed = (_timed(engine, rows, place) for _ in range(REPEATS))
    one, many, _ = (median(times) for times in zip(*timed, strict=True))
    return max(int(1000 * (many - one)) // max(int(one) * (rows - 1), 1), 0)


def _timed(engine: ChatEngine, rows: int, place: int = 0) -> tuple[int, int, int]:
    """Nanoseconds of a chunk of one row, a chunk of `rows`, and a decode row after it, without drafts to verify.

    place: where the chunks begin, over whatever the slot holds.
    """
    one, many = (_probe(engine.model, place + each) for each in (1, rows))
    alone = Generation(engine, one, SamplingParams(max_tokens=1), known=place, ignore_stop=True)
    one_ns = _pass_ns(engine, alone, 1)
    answer = Generation(engine, many, SamplingParams(max_tokens=2), known=place, ignore_stop=True)
    return one_ns, _pass_ns(engine, answer, rows), _pass_ns(engine, answer, 1)


def _pass_ns(engine: ChatEngine, generation: Generation, rows: int) -> int:
    """The time of a pass, from its launch until its results are on the host."""
    started_ns = time.perf_counter_ns()
    ticket = generation.launch(engine, rows)
    if ticket is not None:
        generation.commit(*engine.collect(ticket))
    return time.perf_counter_ns() - started_ns


def _probe(model: ChatModel, rows: int) -> Prompt:
    return model.prompt([token % model.config.vocab_size for token in range(rows)])


def _reserve(model: ChatModel, need: MemoryNeed, size: SlotSize, kv_format: KVFormat) -> KVSlots:
    free, gated = free_bytes(model.device), isinstance(kv_format, MemoryKV)
    memories = f", {size.memory_bytes} of them of the memory" if gated else ""
    key, lower = ("chat.long", "chat.long.segment") if gated else ("chat.capacity", "chat.capacity")
    least = _least_kv(model.config.kv_shape(model.network.dtype, size.positions))
    narrower = f", or choose chat.kv {least}" if kv_format is DENSE and least != "model" else ""
    error = ConfigError(
        f"{key}: no memory for {need.slots} slots of {size.positions} positions: {need.slots} x {need.slot_bytes} "
        f"bytes in {model.config.num_hidden_layers} layers{memories}, and {need.beside_bytes} bytes for sequences of "
        f"{size.length} tokens and their passes, are {need.total_bytes / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are "
        f"free; lower {lower} or the number of chat.slots{narrower}"
    )
    if need.total_bytes > free:
        raise error
    try:
        return model.network.kv_slots(need.slots, size.positions, kv_format)
    except (RuntimeError, MemoryError) as cause:
        raise error from cause


def _least_kv(shape: KVShape) -> KVName:
    """The KV format, of those that every device has, in which a slot takes the fewest bytes."""
    names: tuple[KVName, ...] = ("model", "int8", "int4")
    return min(names, key=lambda name: slot_bytes(CONFIGURED[name], shape))


def _error_text(error: float) -> str:
    return f", {error:.1%} of the logits' spread off" if error >= WORTH_TELLING else ""


def _kv(kv: KVSlots) -> str:
    """The slots' numbers, for a person."""
    latent = "latent " if kv.format is LATENT else ""
    named = kv.format.name in (DENSE.name, LATENT.name)
    return f"{latent}KV in {_name(kv.data.dtype) if named else kv.format.name}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _prefix_prompt(model: ChatModel, slot: ChatSlot, length: int, limit: str) -> Prompt:
    key = f"chat.slots {slot.id}"
    try:
        if slot.messages:
            text = model.render([message.model_dump() for message in slot.messages], answer=False)
            prompt = model.chat_prompt(text)
        else:
            prompt = model.text_prompt(slot.text)
    except RequestError as error:
        raise ConfigError(f"{key}: {error.text}") from error
    if len(prompt) >= length:
        raise ConfigError(f"{key}: has {len(prompt)} tokens, {limit}")
    return prompt
