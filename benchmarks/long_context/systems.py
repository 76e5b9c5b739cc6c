"""Systems of the comparison that run through the engine: all pairs, sink and window, sink and memory and window."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.chat import ChatModel
from edgeflow.models.memory_gate import MemoryGate

ANSWER = 12
"""Places for the tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and its times in seconds."""

    text: str
    first_s: float
    token_s: float
    """Mean time per token after the first; NaN if not timed."""


class ServedModel:
    """A model in one slot of the engine that serves it.

    gate: fold what leaves the slot into a memory. places: of the slot; longer prompts lose their middle when there is
    no gate, but for the first `sink` tokens.
    """

    def __init__(
        self, model: ChatModel, places: int, *, gate: MemoryGate | None = None, sink: int = 0, chunk: int = 512
    ) -> None:
        self._model, self._places, self._sink, self._chunk = model, places, sink, chunk
        self._folds = gate is not None
        if gate is None:
            self._engine = ChatEngine(model, model.decoder.kv_slots(1, places))
        else:
            slots = model.decoder.kv_slots(1, gate.rules.threshold, memory_format(gate, places))
            self._engine = ChatEngine(model, slots, folding=folding_of(gate.rules))

    @property
    def slot_bytes(self) -> int:
        """Bytes that it keeps for a prompt while it answers."""
        return self._engine.kv.nbytes

    def answer(self, ids: Sequence[int]) -> Reply:
        kept = ids if self._folds else cut(ids, self._places - ANSWER, self._sink)
        generation = Generation(self._engine, self._model.prompt(kept), SamplingParams(max_tokens=ANSWER))
        stamps, began = [], time.perf_counter()
        for sampled in generate(self._engine, generation, self._chunk):
            if sampled is not None:
                stamps.append(time.perf_counter())
        rate = (stamps[-1] - stamps[0]) / (len(stamps) - 1) if len(stamps) > 1 else torch.nan
        return Reply(self._model.tokenizer.decode(generation.tokens), stamps[0] - began, rate)


def cut(ids: Sequence[int], places: int, sink: int) -> list[int]:
    """The first `sink` ids, and as many of the last ones as fit."""
    if len(ids) <= places:
        return list(ids)
    return [*ids[:sink], *ids[len(ids) - (places - sink) :]]


def position_bytes(model: ChatModel) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return model.decoder.kv_slots(1, 1).nbytes
