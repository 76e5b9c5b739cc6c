"""The interface of networks of tokens: a pass gives them prompts and the tokens after these, and gets logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots


class Taps:
    """Layers whose input a pass keeps, which is the residual stream as it enters them.

    layers: 0-based and distinct, in the order of their features; ValueError for others.
    """

    features: Tensor
    """[L_Q, len(layers) * E]: the features of all rows of the latest pass."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        if not layers or len(set(layers)) < len(layers) or min(layers) < 0:
            raise ValueError(f"taps must name layers, each once, got {layers}")
        self.layers = layers

    def keep(self, layer: int, residual: Tensor) -> None:
        """Copy the input of a layer [L_Q, E], if it is one of these. Layers come in their own order."""
        if layer not in self.layers:
            return
        if layer == min(self.layers):
            rows, width = residual.shape
            self.features = residual.new_empty(rows, len(self.layers) * width)
        self.features.chunk(len(self.layers), 1)[self.layers.index(layer)].copy_(residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """The rows of a pass, as they enter a network: those of prompts, then a token each."""

    prompts: Sequence[Tensor] = ()
    """The rows of each prompt [n, W], in the network's own form."""
    ids: Tensor | None = None
    """[m]: the tokens of the rows after the prompts; None where there are none."""
    drafts: tuple[Tensor, Tensor] | None = None
    """Rows of prompts that hold drafts, and their tokens, [d] each; None where there are none."""

    def embedded(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """H [L_Q, E] (ActionFlow equation 1), of prompts whose rows are embedded. embed: [n] → [n, E]"""
        parts = [*self.prompts] if self.ids is None else [*self.prompts, embed(self.ids)]
        hidden = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self.drafts is None:
            return hidden
        rows, ids = self.drafts
        return hidden.index_copy(0, rows, embed(ids))


class TokenNetwork(Protocol):
    """A language model as a function of packed rows and a KV store."""

    @property
    def name(self) -> str:
        """Its model_name in the operator table."""
        ...

    def next_logits(self, rows: TokenRows, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """The logits of the sampled rows [n, V]; the keys and values of all rows enter their slots.

        taps: keeps the inputs of some layers; ValueError for layers that the network cannot show.
        """
        ...

    def reads_places(self, kv: KVSlots) -> bool:
        """True when attention over a store reads on the host where rows are placed."""
        ...

    def kv_slots(self, slots: int, capacity: int, format: KVFormat | None = None) -> KVSlots:
        """A KV store with this network's layers, heads and dtype, by default in its own format."""
        ...
