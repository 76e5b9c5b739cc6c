"""A vocabulary's embedding and the weight of its head, which are one tensor where a checkpoint ties them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.weights import FLOAT, FloatWeight, Int8Weight, Weight
from edgeflow.models.checkpoint import Weights
from edgeflow_client.errors import ConfigError

HEADS = (FLOAT, Int8Weight.format)
"""Formats of a head."""
HEAD = "lm_head"
ROWS_AT_ONCE = 8192  # of a matrix that is converted, which takes several times their memory


Embedding = Callable[[Tensor], Tensor]
"""Looks up rows of a matrix [V, E]: token ids [n] → rows [n, E]"""


@dataclass(frozen=True, slots=True)
class FloatEmbedding:
    """values [V, E]"""

    values: Tensor

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.values)


@dataclass(frozen=True, slots=True)
class Int8Embedding:
    """Rows of a weight [V, E] in 8 bits, widened when they are looked up."""

    weight: Int8Weight

    def __call__(self, ids: Tensor) -> Tensor:
        weight = self.weight
        rows = Int8Weight(F.embedding(ids, weight.values), weight.scale[ids], weight.dtype)
        return rows.floats()


def shares_embedding(weights: Weights, stem: str, *, tied: bool) -> bool:
    """True when the head is the embedding: where the configuration ties them and the files hold no other head.

    transformers takes a differing head of the files: training untied it. stem: of the embedding's name.
    """
    own = f"{HEAD}.weight"
    return tied and (own not in weights or torch.equal(weights[own], weights[f"{stem}embed_tokens.weight"]))


def read_vocabulary(
    weights: Weights, stem: str, vocab: int, width: int, *, tied: bool, head: str
) -> tuple[Embedding, Weight]:
    """The embedding and the head's weight [V, E]; ConfigError for a head in 8 bits that is stored in another format.

    stem: of the embedding's name. head: one of HEADS; a tied head in 8 bits is the embedding too.
    """
    values = weights.take(f"{stem}embed_tokens.weight", vocab, width)
    if not shares_embedding(weights, stem, tied=tied):
        own = weights.linear(HEAD, vocab, width)
        return FloatEmbedding(values), own if head == FLOAT else _in_8_bits(own)
    if head == FLOAT:
        return FloatEmbedding(values), FloatWeight(values)
    eight = _in_8_bits(FloatWeight(values))
    return Int8Embedding(eight), eight


def _in_8_bits(weight: Weight) -> Int8Weight:
    if not isinstance(weight, FloatWeight):
        raise ConfigError(f"chat.head: int8: the checkpoint holds its head as {weight.format} already")
    parts = [Int8Weight.of(part) for part in torch.split(weight.values, ROWS_AT_ONCE)]
    values, scales = [each.values for each in parts], [each.scale for each in parts]
    return Int8Weight(torch.cat(values), torch.cat(scales), weight.dtype)
