"""Sections of the configuration that are read in several places (config.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from edgeflow.config_base import Section
from edgeflow.config_drafts import DraftKind, EagleConfig, LookupConfig
from edgeflow.contract import KVName
from edgeflow.model_paths import EMBEDDED_CHAT

Name = Annotated[str, Field(min_length=1, max_length=64)]
MOST_TOKENS = 131_072  # of a sequence: its ids cross to the worker in one message


class HealthConfig(Section):
    """Address of the health listener: plain HTTP without TLS or token, answered by its own thread."""

    host: str = "127.0.0.1"
    port: int = Field(8001, ge=0, le=65535)


class RealtimeConfig(Section):
    """CPUs, priorities and locked memory. What the system does not permit becomes a warning at start.

    Priorities: 0 ordinary, -20 to -1 a nice level, 1 to 99 SCHED_FIFO.
    """

    front_cpus: list[int] = Field(default_factory=list, description="CPUs of control; empty = any")
    worker_cpus: list[int] = Field(default_factory=list, description="CPUs of the worker process; empty = any")
    front_priority: int = Field(0, ge=-20, le=99, description="0 ordinary, below 0 nice, above 0 SCHED_FIFO")
    worker_priority: int = Field(0, ge=-20, le=99, description="as front_priority")
    lock_memory: bool = Field(False, description="lock control's pages in memory")


class ArtifactConfig(Section):
    """How models run that `edgeflow export` wrote as graphs; other models do not read this section."""

    providers: list[Name] = Field(
        default=["CPUExecutionProvider"],
        min_length=1,
        max_length=8,
        description="execution providers of ONNX Runtime, the preferred one first; `edgeflow doctor` lists them",
    )


class ChatMessage(Section):
    """A message of a fixed prefix."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1, max_length=1 << 20)


class ChatSlot(Section):
    """A fixed prefix, computed once at start: messages for the chat template, or plain text."""

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    messages: list[ChatMessage] = Field(default_factory=list, max_length=64)
    text: str = Field("", max_length=1 << 20)

    @model_validator(mode="after")
    def _one_of_both(self) -> ChatSlot:
        if bool(self.messages) == bool(self.text):
            raise ValueError(f"slot {self.id}: give either messages or text")
        return self


class LongConfig(Section):
    """Prompts longer than a slot, by a memory gate (docs/long_context.md). Off without a gate."""

    gate: str = Field(
        "",
        description="gate.json, or its folder: in the chat model's folder, or else relative to the working directory; "
        "empty = no prompt may be longer than a slot",
    )
    sink: int | None = Field(None, ge=0, le=MOST_TOKENS, description="first tokens that stay; unset = the gate's")
    window: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="newest tokens that are never folded; unset = the gate's"
    )
    segment: int | None = Field(None, ge=1, le=MOST_TOKENS, description="tokens of a fold; unset = the gate's")
    length: int | None = Field(
        None, ge=16, le=MOST_TOKENS, description=f"tokens of a prompt and its answer together; unset = {MOST_TOKENS}"
    )

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that replace the gate's."""
        named = {"sink": self.sink, "window": self.window, "segment": self.segment}
        return {name: size for name, size in named.items() if size is not None}

    @property
    def most_tokens(self) -> int:
        """The most tokens that a prompt and its answer may have."""
        return MOST_TOKENS if self.length is None else self.length

    @model_validator(mode="after")
    def _sizes_need_a_gate(self) -> LongConfig:
        given = self.sizes if self.length is None else {**self.sizes, "length": self.length}
        if given and not self.gate:
            name, size = next(iter(given.items()))
            raise ValueError(f"{name} is {size}, but gate is empty: name the gate of the chat model, or remove {name}")
        return self


class ChatConfig(Section):
    """The chat plane: one model, one request at a time, beside the robots."""

    enabled: bool = Field(True, description="serve chat if its model is available")
    model: str = Field(
        EMBEDDED_CHAT,
        min_length=1,
        description="checkpoint directory, hub id, demo-chat (the embedded model) or demo-logs (of logs, with a gate)",
    )
    decode_model: str = Field("", description="another checkpoint of the same shape for decode steps; empty = model")
    alias: str = Field("", max_length=128, description="model name for clients; default: the last part of model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["float", "int8", "fp8", "auto"] = Field(
        "float",
        description="int8: 8-bit weights in decode steps (CPU); auto: int8 where it is faster; fp8: as for the policy",
    )
    head: Literal["float", "int8"] = Field(
        "float", description="int8: the head, and with it a tied embedding, held in 8 bits (CPU)"
    )
    operators: str = Field(
        "", description="operator overlay from `edgeflow tune` for the chat model; empty = built-in choices"
    )
    kv: KVName = Field("model", description="KV cache in the model's dtype, in 8 bits (int8, fp8) or in 4 (int4)")
    capacity: int = Field(
        2048,
        ge=16,
        le=MOST_TOKENS,
        description="tokens per slot: prompt and answer together; with long.gate the most that a slot may hold at once",
    )
    long: LongConfig = LongConfig()
    draft: Literal["none", "auto", "lookup", "eagle3"] = Field(
        "none",
        description="drafts that decode passes verify: none, by look-up in the sequence, or by an EAGLE-3 head; auto: "
        "eagle3 with a head, else lookup, where the weights allow it",
    )
    eagle3: EagleConfig = EagleConfig()
    lookup: LookupConfig = LookupConfig()
    slots: list[ChatSlot] = Field(default_factory=list, max_length=16)
    max_tokens: int = Field(256, ge=1, description="tokens of an answer if the request sets no limit")
    max_tokens_limit: int = Field(2048, ge=1, description="largest limit a request may set")
    queue: int = Field(16, ge=0, le=256, description="requests that may wait for their turn")
    queue_ms: int = Field(2_000, ge=1, description="longest wait in the queue; then 429 with Retry-After")
    request_s: float = Field(60.0, gt=0, description="time limit of an answer")
    prefill_chunk: int = Field(256, ge=1, le=8192, description="most prompt tokens in one pass")

    @property
    def name(self) -> str:
        """The model name that clients use."""
        return self.alias or Path(self.model).name

    @property
    def most_tokens(self) -> int:
        """The most tokens that a prompt and its answer may have; the model may allow fewer."""
        return self.long.most_tokens if self.long.gate else self.capacity

    @property
    def draft_kind(self) -> DraftKind:
        """The drafts that the configuration asks for; the model and its device may allow none."""
        if self.draft != "auto":
            return self.draft
        if self.weights == "int8":
            return "none"
        if self.eagle3.model:
            return "eagle3"
        return "none" if self.weights == "auto" else "lookup"

    @model_validator(mode="after")
    def _slots_differ(self) -> ChatConfig:
        ids = [slot.id for slot in self.slots]
        for name in ids:
            if ids.count(name) > 1:
                raise ValueError(f"slots: {ids.count(name)} have the id {name!r}: give each its own")
        return self

    @model_validator(mode="after")
    def _a_gate_goes_with_its_base(self) -> ChatConfig:
        long = self.long
        if long.gate and self.kv != "model":
            raise ValueError(f"kv is {self.kv}, but long.gate {long.gate} needs keys and values in the model's dtype")
        if long.gate and self.decode_model:
            raise ValueError(f"decode_model is {self.decode_model}, but long.gate {long.gate} is a gate for one model")
        for name, size in long.sizes.items():
            if size > self.capacity:
                raise ValueError(f"long.{name} is {size}, but a slot holds at most capacity = {self.capacity} tokens")
        told, together = (
            " + ".join(f"long.{name} {size}" for name, size in long.sizes.items()),
            sum(long.sizes.values()),
        )
        for limit, most in (("capacity", self.capacity), ("long.length", long.most_tokens)):
            if together > most:
                raise ValueError(f"{told} are {together} tokens, but {limit} is {most}")
        return self

    @model_validator(mode="after")
    def _settings_of_drafts_are_used(self) -> ChatConfig:
        draft, head = self.draft, self.eagle3.model
        if draft == "eagle3" and not head:
            raise ValueError(
                "draft is eagle3, but eagle3.model is empty: name the EAGLE-3 head, or set draft to lookup"
            )
        if draft in ("none", "lookup") and head:
            raise ValueError(
                f"eagle3.model is {head}, but draft is {draft}: set draft to eagle3, or remove eagle3.model"
            )
        if draft in ("none", "eagle3"):
            for name, value in self.lookup.changed.items():
                raise ValueError(
                    f"lookup.{name} is {value}, but draft is {draft}: set draft to lookup, or remove lookup.{name}"
                )
        return self

    @model_validator(mode="after")
    def _drafts_can_be_verified(self) -> ChatConfig:
        kind, head = self.draft_kind, self.eagle3.model
        if kind != "none" and self.weights == "int8":
            raise ValueError(
                f"weights is int8, but draft is {kind}: 8-bit decode weights serve single rows, and the rows of a "
                "verification would be computed with other weights than a decode row; set weights to float, or draft "
                "to none"
            )
        if kind == "eagle3" and self.decode_model:
            raise ValueError(
                f"decode_model is {self.decode_model}, but eagle3.model {head} is a head for one model: "
                "remove one of them"
            )
        if kind == "eagle3" and self.kv == "int4" and not self.eagle3.chain:
            raise ValueError(
                "kv is int4, but eagle3.chain is false: a tree of drafts needs positions that move one by one, and "
                "int4 stores keys in groups; set eagle3.chain to true, or choose another kv"
            )
        return self


class CandidateWeights(Section):
    """Weights of what the chunks that answer one frame are scored by; the lowest sum is sent."""

    distance: float = Field(
        1.0, ge=0, le=1e6, description="of the mean squared distance to the chunk being played, normalised"
    )
    roughness: float = Field(1.0, ge=0, le=1e6, description="of the mean squared jerk per step, normalised")
    limits: float = Field(1.0, ge=0, le=1e6, description="of the mean excess over the limits, as a share of each")


class DimensionLimits(Section):
    """Limits of one dimension of the actions, in its unit and seconds."""

    velocity: float | None = Field(None, gt=0, description="units per second; unset = no limit, as for the others")
    acceleration: float | None = Field(None, gt=0, description="units per second squared")
    jerk: float | None = Field(None, gt=0, description="units per second cubed")
    low: float | None = Field(None, description="lowest position; of a displacement, that of the pose that it leads to")
    high: float | None = Field(None, description="highest position")
    state: str = Field(
        "",
        max_length=128,
        description="number of the policy's state that is the dimension's position, as observation.state[3]",
    )
    free_start: bool = Field(
        False,
        description="of a position without state: the first command of a motion may be anywhere within low and high",
    )

    @model_validator(mode="after")
    def _box_has_room(self) -> DimensionLimits:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not below high, {self.high:g}")
        return self


class TrajectoryConfig(Section):
    """The chunks that are sent: the best of a frame's candidates, within limits on its motion."""

    weights: CandidateWeights = CandidateWeights()
    limits: dict[Name, DimensionLimits] = Field(
        default_factory=dict, max_length=256, description="limits on the motion, by dimension of the actions"
    )
