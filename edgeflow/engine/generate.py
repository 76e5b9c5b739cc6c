"""One chat request over the packed forward, in steps: what it adds to a pass, and what the pass gives it.

A step is a chunk of the prompt or one decode row. Whoever runs passes decides when: steps of several requests, or of
other users of the same decoder, may share one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from edgeflow.engine.policy import Decoder
from edgeflow.engine.sampling import Constraint, SampledToken, Sampler
from edgeflow.engine.sampling_params import SamplingParams
from edgeflow.errors import InvalidArgument
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.kernels.shapes import stage_of
from edgeflow.models.chat import ChatModel, PromptRows
from edgeflow.models.prompt import Prompt
from edgeflow.reasons import Reason


class Finish(str, Enum):
    """The reason an answer ended: a stop token or string, or no more room."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows that enter a pass. hidden [n, E]; positions [C, n]; samples: whether the last row's logits are needed."""

    span: Span
    hidden: Tensor
    positions: Tensor
    samples: bool


RunPass = Callable[[Decoder, KVSlots, Sequence[StepRows]], "list[Tensor | None]"]
"""Runs a pass: `run_pass`, or a replay of it."""


@torch.inference_mode()
def run_pass(decoder: Decoder, kv: KVSlots, steps: Sequence[StepRows]) -> list[Tensor | None]:
    """Run one packed forward; returns the logits [V] of each step that samples."""
    components = max(len(step.positions) for step in steps)
    positions = torch.cat([step.positions.expand(components, -1) for step in steps], dim=1)
    hidden = torch.cat([step.hidden for step in steps])
    layout = PackedLayout.of([step.span for step in steps], hidden.device, positions)
    hidden = decoder.forward_sampled(hidden, layout, kv)
    sampling = [index for index, step in enumerate(steps) if step.samples]
    logits: list[Tensor | None] = [None] * len(steps)
    if sampling:
        rows = hidden[sampling]
        for index, row in zip(sampling, decoder.logits(rows, stage_of(layout.lengths)), strict=True):
            logits[index] = row
    return logits


class Prefill:
    """A prompt that enters a slot chunk by chunk. place: its next row."""

    def __init__(self, model: ChatModel, prompt: Prompt, slot: int, *, known: int = 0) -> None:
        self._prompt = prompt
        self._rows = PromptRows(model, prompt)
        self._slot = slot
        self.place = known

    @property
    def left(self) -> int:
        """Rows still to enter."""
        return len(self._prompt) - self.place

    @torch.inference_mode()
    def rows(self, most: int, *, samples: bool) -> StepRows:
        """The next chunk, of at most `most` rows. samples: whether the logits of the prompt's last row are needed."""
        start, stop = self.place, min(self.place + most, len(self._prompt))
        self.place = stop
        span = Span(self._slot, start, stop - start)
        positions = self._prompt.positions[:, start:stop]
        return StepRows(span, self._rows.take(start, stop), positions, samples and not self.left)


class Generation:
    """One request in one slot. `rows`, a pass, `take`, and so on until `finish` says why it ended.

    known: rows of the prompt whose KV lies in the slot already, fewer than all. capacity: positions of the slot.
    decode: the model of the decode rows, where another computes the prompt.
    """

    def __init__(
        self,
        model: ChatModel,
        prompt: Prompt,
        params: SamplingParams,
        slot: int,
        capacity: int,
        *,
        known: int = 0,
        ignore_stop: bool = False,
        constraint: Constraint | None = None,
        decode: ChatModel | None = None,
    ) -> None:
        if len(prompt) > capacity:
            text = f"{len(prompt)} tokens, at most {capacity} fit the slot"
            raise InvalidArgument(text, field="prompt", reason=Reason.CONTEXT_LENGTH_EXCEEDED)
        if not 0 <= known < len(prompt):
            raise ValueError(f"{known} rows of a prompt of {len(prompt)} are known: at least one must be computed")
        self._model = model
        self._decode = decode or model
        self._prompt = prompt
        self._slot = slot
        self._prefill = Prefill(model, prompt, slot, known=known)
        self._sampler = Sampler(params, prompt.ids, model.config.vocab_size, model.device, constraint)
        self._most = min(params.max_tokens, capacity - len(prompt) + 1)
        self._stop_ids = frozenset[int]() if ignore_stop else model.stop_ids
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    @property
    def decoder(self) -> Decoder:
        """The decoder that runs the next pass."""
        return self._model.decoder if self._prefill.left else self._decode.decoder

    def rows(self, most: int) -> StepRows:
        """Rows of the next pass: at most `most` of the prompt, or the decode row of the last token."""
        if self._prefill.left:
            return self._prefill.rows(most, samples=True)
        place = len(self._prompt) + len(self.tokens) - 1
        position = torch.tensor([[place + self._prompt.shift]])
        return StepRows(Span(self._slot, place, 1), self._decode.embed(self.tokens[-1:]), position, True)

    def take(self, logits: Tensor | None) -> SampledToken | None:
        """Sample from a pass's logits; None where the pass held only part of the prompt. Stop tokens count."""
        if logits is None:
            return None
        sampled = self._sampler.sample(logits)
        self.tokens.append(sampled.token)
        if sampled.token in self._stop_ids:
            self.finish = Finish.STOP
        elif len(self.tokens) == self._most:
            self.finish = Finish.LENGTH
        return sampled

    def stop(self) -> None:
        """End the answer: its text has met a stop string."""
        self.finish = Finish.STOP


def generate(model: ChatModel, kv: KVSlots, generation: Generation, chunk: int) -> Iterator[SampledToken | None]:
    """Run the request by itself; one item per pass: a token, or None for a chunk of the prompt."""
    while generation.finish is None:
        (logits,) = run_pass(model.decoder, kv, [generation.rows(chunk)])
        yield generation.take(logits)


@dataclass(frozen=True, slots=True)
class FixedPrefix:
    """A beginning that many prompts share; its KV lies in `slot`."""

    prompt: Prompt
    slot: int

    def compute(self, model: ChatModel, kv: KVSlots, chunk: int) -> Iterator[int]:
        """Fill the slot; one item per pass: the number of rows computed so far."""
        prefill = Prefill(model, self.prompt, self.slot)
        while prefill.left:
            run_pass(model.decoder, kv, [prefill.rows(chunk, samples=False)])
            yield prefill.place

    def lend(self, kv: KVSlots, prompt: Prompt, slot: int) -> int:
        """Bring what `prompt` shares with this prefix into its slot; returns how many rows are known then.

        In the prefix's own slot nothing moves; there the whole prefix must be shared, as the rest is written over.
        """
        known = min(self.prompt.common(prompt), len(prompt) - 1)
        if slot != self.slot:
            kv.copy_rows(self.slot, slot, known)
        elif known < min(len(self.prompt), len(prompt) - 1):
            raise ValueError("a prompt that leaves the prefix cannot run in the prefix's slot")
        return known
