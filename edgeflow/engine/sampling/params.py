"""The sampling parameters of a request and their bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeflow.models.published import GenerationConfig
from edgeflow_client.errors import InvalidArgument

MAX_LOGPROBS = 5
BOUNDS = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. temperature 0: greedy; top_k 0: off; seed None: another answer each time."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    """None, or how many alternatives are returned beside the token's own."""

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
                raise InvalidArgument(f"must be a number from {least} to {most}, got {value!r}", field=name)
        if self.top_p == 0:
            raise InvalidArgument("must be more than 0", field="top_p")
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise InvalidArgument(f"must be an integer of at least 1, got {self.max_tokens!r}", field="max_tokens")
        if type(self.top_k) is not int or self.top_k < 0:
            raise InvalidArgument(f"must be an integer of at least 0, got {self.top_k!r}", field="top_k")
        if self.logprobs is not None and not (type(self.logprobs) is int and 0 <= self.logprobs <= MAX_LOGPROBS):
            raise InvalidArgument(
                f"must be an integer from 0 to {MAX_LOGPROBS}, got {self.logprobs!r}", field="logprobs"
            )
        if self.seed is not None and type(self.seed) is not int:
            raise InvalidArgument(f"must be an integer, got {self.seed!r}", field="seed")

    @property
    def penalised(self) -> bool:
        """True when a penalty changes logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @classmethod
    def recommended(cls, by: GenerationConfig, max_tokens: int = 1, temperature: float | None = None) -> SamplingParams:
        """The parameters that a checkpoint recommends. temperature: None takes the checkpoint's own."""
        return cls(
            max_tokens=max_tokens,
            temperature=by.temperature if temperature is None else temperature,
            top_p=by.top_p,
            top_k=by.top_k,
            min_p=by.min_p,
            repetition_penalty=by.repetition_penalty,
        )
