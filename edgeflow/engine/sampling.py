"""From logits to a token: penalties, temperature, min-p, top-k, top-p, then one draw (in this order, as vLLM does).

Repetition divides or multiplies the logit of what the prompt or the answer holds; presence and frequency lower the
logit of what the answer holds, once and by count. min-p keeps tokens at least min_p times as probable as the best;
top-k keeps the k best and what equals the k-th; top-p keeps the fewest tokens that hold top_p of what is left, equal
ones by ascending id. Log probabilities are the model's own, before all of this.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from edgeflow.engine.sampling_params import SamplingParams
from edgeflow.errors import WorkerError


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token that was drawn. logprob: its own, None unless requested. top: (id, log probability), best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """A constraint on an answer. allowed: [V] bool; accept: called with each token that was chosen."""

    def allowed(self) -> Tensor: ...

    def accept(self, token: int) -> None: ...


class Sampler:
    """The sampler of one request, which remembers its tokens. The same seed and logits give the same tokens."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        device: torch.device,
        constraint: Constraint | None = None,
    ) -> None:
        self._params = params
        self._constraint = constraint
        self._random = random.Random(params.seed)
        self._counts = torch.zeros(vocab_size, device=device)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._seen[torch.tensor(prompt_ids, dtype=torch.long, device=device)] = True

    def sample(self, logits: Tensor) -> SampledToken:
        """logits [V]; WorkerError where one is NaN or infinite (negative infinity forbids a token)."""
        logits = logits.float()
        scores = self._penalised(logits)
        if not math.isfinite(scores.max()):
            raise WorkerError("the model's output is not finite")
        if self._constraint is not None:
            scores = scores.masked_fill(~self._constraint.allowed(), -math.inf)
        if self._params.temperature == 0:
            token = int(scores.argmax())
        else:
            token = draw(probabilities(scores, self._params), self._random.random())
        if self._constraint is not None:
            self._constraint.accept(token)
        self._counts[token] += 1
        self._seen[token] = True
        return self._told(token, logits)

    def _penalised(self, logits: Tensor) -> Tensor:
        params = self._params
        if params.repetition_penalty != 1:
            weaker = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
            logits = torch.where(self._seen, weaker, logits)
        if params.presence_penalty or params.frequency_penalty:
            said = (self._counts > 0).float()
            logits = logits - params.frequency_penalty * self._counts - params.presence_penalty * said
        return logits

    def _told(self, token: int, logits: Tensor) -> SampledToken:
        if self._params.logprobs is None:
            return SampledToken(token)
        logprobs = logits.log_softmax(-1)
        best = logprobs.topk(self._params.logprobs)
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return SampledToken(token, float(logprobs[token]), top)


def probabilities(scores: Tensor, params: SamplingParams) -> Tensor:
    """Weights: [V] → [V] float64, 0 where a token must not be drawn. Not for temperature 0."""
    scores = scores.double() / params.temperature
    if params.min_p:
        scores = scores.masked_fill(scores < scores.max() + math.log(params.min_p), -math.inf)
    if 0 < params.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -math.inf)
    left = scores.softmax(-1)
    return _nucleus(left, params.top_p) if params.top_p < 1 else left


def draw(weights: Tensor, share: float) -> int:
    """The id in which `share` (0 .. 1) of the summed weights [V] falls."""
    sums = weights.cumsum(-1)
    found = int(torch.searchsorted(sums, share * sums[-1], right=True))
    return min(found, int(weights.nonzero()[-1]))


def _nucleus(left: Tensor, top_p: float) -> Tensor:
    """Sorts only what may belong: all tokens of less than (1 - top_p) / V together hold less than 1 - top_p."""
    (likely,) = torch.where(left >= (1 - top_p) / len(left))
    by_weight = left[likely].sort(descending=True, stable=True)
    before = by_weight.values.cumsum(-1) - by_weight.values
    chosen = likely[by_weight.indices[before < top_p]]
    return torch.zeros_like(left).index_copy_(0, chosen, left[chosen])
