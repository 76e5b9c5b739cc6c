"""The messages between the chat front and the worker."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.ipc.framing import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStart:
    """Chat front → worker: answer a prompt. Answered by ChatTokens and one ChatDone, or by ChatRejected."""

    request: int
    model: str
    ids: list[int]
    """The prompt's tokens, with one placeholder per image."""
    sizes: list[int]
    """Height and width of each image, flattened."""
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    """0 = off."""
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    """-1 = random."""
    logprobs: int
    """Number of alternatives per token; -1 = no log probabilities."""
    schema: str
    """A JSON schema that the answer must follow, or ""."""
    payload: Payload
    """height*width*3 RGB bytes per image, concatenated."""


@dataclass(frozen=True, slots=True)
class ChatStop:
    """Chat front → worker: end an answer, after a stop string or because the client is gone (cancelled)."""

    request: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class SetPrefix:
    """Chat front → worker: replace the fixed prefix of a declared slot; no ids = remove it.

    It is computed after the requests that arrived earlier, which keep the prefix they run on. Answered by PrefixSet or
    ChatRejected.
    """

    request: int
    slot: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSlots:
    """Slots with a memory: the sizes of the memory gate in tokens, and the bytes of a slot's memory."""

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
    """Worker → front, before WorkerReady: a chat model is loaded."""

    model: str
    family: str
    model_fingerprint: str
    images: bool
    length: int
    """The most tokens of prompt and answer together."""
    capacity: int
    """Positions of a slot; smaller than `length` only for slots with a memory."""
    long: LongSlots | None
    """None without a memory gate."""
    slots: list[str]
    """Ids of the declared fixed prefixes."""
    slot_bytes: int
    """Size of one slot, with its memory."""
    kv_bytes: int
    """Size of all slots, including one for recordings."""
    step_ns: int
    """Time of a decode step."""
    row_ns: int
    """Time per prompt row within a chunk."""
    sampling: list[float]
    """The checkpoint's temperature, top_p, min_p and repetition_penalty."""
    top_k: int
    numbers: str
    """Precision and its cost, for people."""
    draft: str = ""
    """The kind of drafts that decode passes verify: lookup or eagle3; "" = none."""


@dataclass(frozen=True, slots=True)
class ChatToken:
    """Worker → chat front: the next token."""

    request: int
    token: int
    logprobs: list[float]
    """Log probabilities of the token and of the likeliest tokens `top`; empty unless requested."""
    top: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDone:
    """Worker → chat front: the end of an answer."""

    request: int
    reason: str
    """stop, length or cancelled."""
    prompt_tokens: int
    answer_tokens: int
    reused: int
    """Prompt rows taken from the fixed prefix of `slot` ("" = none)."""
    slot: str
    queue_ns: int
    """Time from arrival to the first step."""
    prefill_ns: int
    """Time from the first step to the first token."""
    decode_ns: int
    """Time from the first token to the end."""
    route: str = ""
    """`long` if a part of the prompt was folded, else `short`; "" without a memory gate."""
    compressed: int = 0
    """Folded tokens of the prompt."""
    folds: int = 0
    """Segments in the memory at the end, including those of the answer and of a fixed prefix."""
    draft: str = ""
    """lookup or eagle3; "" = the request had no drafts."""
    drafted: int = 0
    """Draft tokens checked by passes; `accepted` of them were right."""
    accepted: int = 0
    draft_passes: int = 0
    """Passes with drafts."""
    plain_passes: int = 0
    """Decode passes without drafts, because none was found or there was no room."""


@dataclass(frozen=True, slots=True)
class ChatRejected:
    """Worker → chat front: the request is rejected with a RequestError; `code` is a gRPC status name."""

    request: int
    code: str
    text: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """Worker → chat front: the slot's new prefix is computed."""

    request: int
    slot: str
    tokens: int
    """Length of the prefix."""
