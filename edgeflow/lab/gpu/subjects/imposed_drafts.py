"""Drafts of which a given number is right: the cost and the gain of drafts, apart from how good a head is.

The drafter within runs as it would, and its time counts. Then known next tokens replace what it drafted, on the device:
in a chain, or on the longest path of a fixed tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.drafts.kinds import DraftKind
from edgeflow.engine.program import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.lab.gpu.subjects.random_weights import random_weights
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.llama import LlamaConfig
from edgeflow.scheduler.plan import DraftForm

PATH = 3
"""Drafts on the longest path of the fixed tree; all others follow the root."""


@dataclass(frozen=True, slots=True, eq=False)
class Imposed:
    """The kind `within`, whose drafts are replaced. answer [T]: the tokens of a sequence, prompt included. tokens []:
    how many each verification settles, at most PATH + 1. Both int64, on the device; a recording reads them anew.
    vocabulary: V of the model.
    """

    within: DraftKind
    answer: Tensor
    tokens: Tensor
    vocabulary: int

    @property
    def name(self) -> str:
        return self.within.name

    @property
    def form(self) -> DraftForm:
        return self.within.form

    @property
    def rows(self) -> int:
        return self.within.rows

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        return _ImposedDrafter(self, self.within.drafter(kv, state), state)


class _ImposedDrafter:
    """Runs the drafter `within`, then writes over what it drafted."""

    def __init__(self, kind: Imposed, within: Drafter, state: SlotState) -> None:
        self._kind = kind
        self._within = within
        self._state = state

    @property
    def taps(self) -> tuple[int, ...]:
        return self._within.taps

    @property
    def store(self) -> KVSlots | None:
        return self._within.store

    def width(self, form: DraftForm) -> int:
        return self._within.width(form)

    def rows(self, form: DraftForm) -> int:
        return self._within.rows(form)

    def draft(self, read: ReadRows) -> Tensor:
        found = self._within.draft(read)
        if not read.sampled:
            return found
        answer, drafts = self._kind.answer, self.rows(read.form) - 1
        newest = (read.firsts + read.counts)[:, None]
        at = torch.arange(1, drafts + 1, device=newest.device)
        on_path = at <= (PATH if read.form is DraftForm.TREE else drafts)
        known = answer[(newest + torch.where(on_path, at, 1)).clamp(max=len(answer) - 1)]
        wrong = torch.where(on_path, known + 1, known + 1 + at)  # siblings are different tokens
        right = on_path & (at < self._kind.tokens)
        self._state.ids[read.slots[:, None], newest + at] = torch.where(right, known, wrong % self._kind.vocabulary)
        if read.form is DraftForm.TREE:
            parents = torch.where(on_path, at - 1, 0).expand(len(read.slots), -1)
            self._state.tree.plant(read.slots, parents, PATH)
        return torch.full_like(found, drafts)


def head_config(base: LlamaConfig, *, tokens: int) -> Eagle3Config:
    """The head of a Qwen2.5 as SpecForge trains it: a layer of its base, with `tokens` in its vocabulary."""
    text = replace(base, num_hidden_layers=1, tie_word_embeddings=False, attention_bias=False)
    layers = base.num_hidden_layers
    return Eagle3Config(
        text=text,
        draft_vocabulary=tokens,
        taps=tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)})),
        target_hidden=base.hidden_size,
        norm_before_residual=False,
        own_embedding=False,
    )


def random_head(model: ChatModel, tokens: int, table: OperatorTable) -> Eagle3Head:
    """A head with random weights over the embedding of its base."""
    config, decoder = head_config(model.config, tokens=tokens), model.decoder
    weights = random_weights(config.shapes, model.device, decoder.dtype)
    targets = torch.arange(tokens, device=model.device) * (model.config.vocab_size // tokens)
    return Eagle3Head(config, weights, decoder.embedding, targets, table)
