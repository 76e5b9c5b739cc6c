"""The messages between the chat front and the worker."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.ipc.framing import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStart:
    """Chat front → worker: answer a prompt. Answered by ChatTokens and one ChatDone, or by ChatRefused.

    ids: the prompt's tokens, with one placeholder per image. sizes: height and width of each image, flattened.
    top_k: 0 = off. seed, logprobs: -1 = none. schema: a JSON schema that the answer must follow, or "".
    Payload: height*width*3 RGB bytes per image, concatenated.
    """

    request: int
    model: str
    ids: list[int]
    sizes: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logprobs: int
    schema: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class ChatStop:
    """Chat front → worker: end an answer, because of a stop string or because the client is gone (cancelled)."""

    request: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class SetPrefix:
    """Chat front → worker: replace the fixed prefix of a declared slot; no ids = remove it.

    It is computed after the requests that arrived earlier, which keep the prefix they run on. Answered by PrefixSet or
    ChatRefused.
    """

    request: int
    slot: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSlots:
    """Slots with a memory: the sizes of the gate in tokens, and the memory of a slot besides its positions."""

    sink: int
    window: int
    segment: int
    memory_bytes: int

    @property
    def threshold(self) -> int:
        """The shortest prompt of which a part is folded."""
        return self.sink + self.window + self.segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReady:
    """Worker → front, before WorkerReady: a chat model is loaded.

    length: the most tokens of a prompt and its answer together. capacity: positions of a slot, which `length` exceeds
    only where slots have a memory. long: None without a gate. slots: ids of the declared fixed prefixes.
    slot_bytes: of one slot, with its memory; kv_bytes: of all, one for recordings included. step_ns: time of a decode
    step. row_ns: time per prompt row within a chunk. sampling: the checkpoint's own temperature, top_p, min_p and
    repetition_penalty. numbers: precision and its cost, for people. draft: the drafts that decode passes verify, lookup
    or eagle3; "" = none.
    """

    model: str
    family: str
    model_fingerprint: str
    images: bool
    length: int
    capacity: int
    long: LongSlots | None
    slots: list[str]
    slot_bytes: int
    kv_bytes: int
    step_ns: int
    row_ns: int
    sampling: list[float]
    top_k: int
    numbers: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class ChatToken:
    """Worker → chat front: the next token. logprobs: of it and of the likeliest ones `top`; empty unless requested."""

    request: int
    token: int
    logprobs: list[float]
    top: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDone:
    """Worker → chat front: the end of an answer. reason: stop, length or cancelled.

    reused: prompt rows taken from the fixed prefix of `slot` ("" = none). queue_ns: from arrival to the first step.
    prefill_ns: from there to the first token. decode_ns: from there to the end. route: `long` for a prompt of which a
    part was folded, `short` for another, "" without a gate. folds: segments in the memory at the end, those of the
    answer and of a fixed prefix included. compressed: their tokens. draft: lookup or eagle3; "" = the request had no
    drafts. drafted: draft tokens that were verified, of which `accepted` were right. draft_passes: passes that verified
    drafts. plain_passes: decode passes without any, because none was found or there was no room.
    """

    request: int
    reason: str
    prompt_tokens: int
    answer_tokens: int
    reused: int
    slot: str
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    route: str = ""
    compressed: int = 0
    folds: int = 0
    draft: str = ""
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    plain_passes: int = 0


@dataclass(frozen=True, slots=True)
class ChatRefused:
    """Worker → chat front: the request is refused with a RequestError; `code` is a gRPC status name."""

    request: int
    code: str
    text: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """Worker → chat front: the slot's new prefix is computed. tokens: its length."""

    request: int
    slot: str
    tokens: int
