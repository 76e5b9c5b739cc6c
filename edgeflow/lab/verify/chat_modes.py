"""The modes in which a chat model answers: alone, in chunks, after a fixed prefix, packed with others. Used
by checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt

CHUNKS = (1, 5, 64)
PACKED_CHUNK = 7
PREFIX_CHUNK = 16


@dataclass(frozen=True, slots=True)
class PromptCase:
    """A prompt and the number of tokens to generate."""

    prompt: Prompt
    tokens: int

    @property
    def positions(self) -> int:
        return len(self.prompt) + self.tokens


Answer = tuple[list[int], list[Tensor]]
"""Greedy tokens, and the logits [V] of each."""


@dataclass(frozen=True, slots=True)
class ChatModes:
    """Runs a model in each mode."""

    model: ChatModel
    kv_format: KVFormat | None = None
    """The format of keys and values; None: the model's own."""

    def all(self) -> dict[str, Callable[[Sequence[PromptCase]], list[Answer]]]:
        """The answers in each mode, by name, in the order of the requests."""
        chunked = {
            f"chunks of {size}": lambda asked, size=size: [self.alone(each, size) for each in asked] for size in CHUNKS
        }
        return {
            "alone": lambda asked: [self.alone(each, len(each.prompt)) for each in asked],
            **chunked,
            "prefix": lambda asked: [self._after_prefix(each, slot=0) for each in asked],
            "prefix, copied": lambda asked: [self._after_prefix(each, slot=1) for each in asked],
            "packed": self._packed,
        }

    def alone(self, asked: PromptCase, chunk: int) -> Answer:
        engine = self._engine(1, asked.positions)
        return _run(engine, [_generation(engine, asked, 0)], chunk)[0]

    def kv(self, slots: int, capacity: int) -> KVSlots:
        return self.model.network.kv_slots(slots, capacity, self.kv_format)

    def _after_prefix(self, asked: PromptCase, slot: int) -> Answer:
        """Compute the first half of the prompt once in slot 0, then run the request twice after it.

        slot: where the request runs.
        """
        engine = self._engine(2, asked.positions)
        prefix = FixedPrefix(asked.prompt.head(max(1, len(asked.prompt) // 2)), 0)
        for _ in prefix.compute(engine, PREFIX_CHUNK):
            pass
        for _ in range(2):
            known = lend(prefix, engine, asked.prompt, slot)
            (answer,) = _run(engine, [_generation(engine, asked, slot, known)], PREFIX_CHUNK)
        return answer

    def _packed(self, asked: Sequence[PromptCase]) -> list[Answer]:
        """Run requests together, one slot each, by descending index, so that the rows of a pass are not in the order
        of slots.
        """
        engine = self._engine(len(asked), max(each.positions for each in asked))
        slots = range(len(asked) - 1, -1, -1)
        generations = [_generation(engine, each, slot) for each, slot in zip(asked, slots, strict=True)]
        return _run(engine, generations, PACKED_CHUNK)

    def _engine(self, slots: int, capacity: int) -> ChatEngine:
        return ChatEngine(self.model, self.kv(slots, capacity), keep_logits=True)


def _generation(engine: ChatEngine, asked: PromptCase, slot: int, known: int = 0) -> Generation:
    params = SamplingParams(max_tokens=asked.tokens)
    return Generation(engine, asked.prompt, params, slot, known=known, ignore_stop=True)


def _run(engine: ChatEngine, generations: list[Generation], chunk: int) -> list[Answer]:
    """Run requests in shared passes; each starts one pass after the one before it."""
    logits: list[list[Tensor]] = [[] for _ in generations]
    started = 0
    while any(each.finish is None for each in generations):
        started = min(started + 1, len(generations))
        busy = [index for index in range(started) if generations[index].finish is None]
        if busy:
            steps = run_pass(engine, [generations[index] for index in busy], chunk)
            for index, step in zip(busy, steps, strict=True):
                logits[index] += [] if step.logits is None else [step.logits[-1]]
    return [(each.tokens, rows) for each, rows in zip(generations, logits, strict=True)]
