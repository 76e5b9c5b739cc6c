"""The section of the configuration about chat: model, slots, drafts and long prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from edgeflow.config.sections import Section
from edgeflow.contract import KVName
from edgeflow.model_paths import EMBEDDED_CHAT

MOST_TOKENS = 131_072  # per sequence: its ids are sent to the worker in one message
DraftKind = Literal["none", "lookup", "eagle3"]
ROWS, DEPTH, WIDTH = 60, 7, 10
"""Rows of a verification, forwards after the first, and drafts per node of a tree, where they are unset."""
MOST_ROWS = 63  # of a verification, and of the head's own drafts in a pass


class ChatMessage(Section):
    """A message of a fixed prefix."""

    role: Literal["system", "user", "assistant"] = Field(description="who says it")
    content: str = Field(min_length=1, max_length=1 << 20, description="its text")


class ChatSlot(Section):
    """A fixed prefix, computed once at start: messages for the chat template, or plain text."""

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="name of the slot, in requests and metrics")
    messages: list[ChatMessage] = Field(
        default_factory=list, max_length=64, description="the prefix as messages, for the chat template"
    )
    text: str = Field("", max_length=1 << 20, description="the prefix as plain text, instead of messages")

    @model_validator(mode="after")
    def _one_of_both(self) -> ChatSlot:
        if bool(self.messages) == bool(self.text):
            raise ValueError(f"slot {self.id}: give either messages or text")
        return self


class LongConfig(Section):
    """Prompts longer than a slot, by a memory gate (docs/chat/long-context.md). Off without a gate."""

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
        if self.changed and not self.gate:
            name, size = next(iter(self.changed.items()))
            raise ValueError(f"{name} is {size}, but gate is empty: name the gate of the chat model, or remove {name}")
        return self


class EagleConfig(Section):
    """Drafts by an EAGLE-3 head (docs/chat/drafts.md). Off without a head."""

    model: str = Field("", description="directory or hub id of the chat model's EAGLE-3 head; empty = none")
    rows: int | None = Field(
        None,
        ge=2,
        le=MOST_ROWS,
        description="rows of a verification, the newest token included; "
        f"unset = {ROWS}, or fewer where depth and width draft fewer",
    )
    depth: int = Field(DEPTH, ge=1, le=16, description="forwards of the head after its first")
    width: int | None = Field(None, ge=2, le=32, description=f"drafts per node of the tree; unset = {WIDTH}")
    chain: bool = Field(False, description="verify a chain of depth + 1 drafts instead of a tree")

    @property
    def pass_rows(self) -> int:
        """Rows of a verification: the newest token and its drafts."""
        if self.chain:
            return self.depth + 2
        return min(ROWS, 1 + self._most_drafts) if self.rows is None else self.rows

    @property
    def top(self) -> int:
        """Drafts per node: 1 in a chain."""
        if self.chain:
            return 1
        return WIDTH if self.width is None else self.width

    @property
    def _most_drafts(self) -> int:
        """Drafts of a whole tree: `top` from the first forward, and `top` for each of `top` nodes from every other."""
        return self.top + self.depth * self.top**2

    @model_validator(mode="after")
    def _settings_need_a_head(self) -> EagleConfig:
        if self.changed and not self.model:
            name, value = next(iter(self.changed.items()))
            raise ValueError(
                f"{name} is {json.dumps(value)}, but model is empty: name the EAGLE-3 head, or remove {name}"
            )
        return self

    @model_validator(mode="after")
    def _a_chain_has_its_own_size(self) -> EagleConfig:
        for name, value, fixed in (("rows", self.rows, self.pass_rows), ("width", self.width, self.top)):
            if self.chain and value is not None:
                raise ValueError(
                    f"{name} is {value}, but chain is true, and a chain of depth {self.depth} has {name} {fixed}: "
                    f"remove {name}, or set chain to false"
                )
        return self

    @model_validator(mode="after")
    def _the_tree_has_room(self) -> EagleConfig:
        most, sizes = self._most_drafts, f"depth {self.depth} and width {self.top}"
        if self.rows is not None and self.rows - 1 > most:
            raise ValueError(
                f"rows is {self.rows}, but {sizes} give at most {most} drafts beside the newest token: "
                f"lower rows to {most + 1}, or raise depth or width"
            )
        kept = (self.depth - 1) * self.top
        if kept > MOST_ROWS:
            raise ValueError(
                f"{sizes}: (depth - 1) x width is {kept}, but at most {MOST_ROWS} is possible: lower width to "
                f"{max(MOST_ROWS // (self.depth - 1), 2)} or less, or depth to {1 + MOST_ROWS // self.top} or less"
            )
        return self


class LookupConfig(Section):
    """Drafts by prompt look-up: the tokens that followed the newest ones where they last stood in the sequence."""

    drafts: int = Field(8, ge=1, le=31, description="most drafts in a pass")
    longest: int = Field(4, ge=1, le=16, description="tokens of the longest run that is searched for")
    shortest: int = Field(1, ge=1, le=16, description="tokens of the shortest run that is searched for")

    @model_validator(mode="after")
    def _runs_are_in_order(self) -> LookupConfig:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest is {self.shortest}, but longest is {self.longest}: lower shortest, or raise longest"
            )
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
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 on CUDA, and on a CPU with bfloat16 for a 16-bit checkpoint; else float32",
    )
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
    slots: list[ChatSlot] = Field(
        default_factory=list, max_length=16, description="fixed prefixes, each computed once and kept"
    )
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
