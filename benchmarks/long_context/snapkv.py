"""Selection of keys in the manner of SnapKV (arXiv 2404.14469), without a KV store.

A prompt is read with full attention. Then each head keeps the pairs that the prompt's last queries attended to most
(pooled over neighbours), next to the sink and the window. So the memory is bounded only after the prompt was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.long_context.systems import ANSWER, Reply
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.models.chat import ChatModel

OBSERVED = 32
"""Number of last queries whose attention is counted."""
POOL = 7
"""Number of neighbours over which the maximum of a key's share is taken: as many as a line of the log has tokens."""


@dataclass(frozen=True, slots=True)
class KeptKV:
    """Keys and values [KH, n, D] of one layer."""

    keys: Tensor
    values: Tensor

    def and_one(self, k: Tensor, v: Tensor) -> KeptKV:
        return KeptKV(torch.cat((self.keys, k), 1), torch.cat((self.values, v), 1))


class SnapKV:
    """places: pairs of each head that are kept, answer included; `sink` first, `window` last, the rest selected."""

    def __init__(self, model: ChatModel, base: PlainBase, places: int, sink: int, window: int, slot_bytes: int) -> None:
        self._model, self._base = model, base
        self._places, self._sink, self._window = places - ANSWER, sink, window
        self.slot_bytes = slot_bytes

    @torch.inference_mode()
    def answer(self, ids: Sequence[int]) -> Reply:
        last, kept = self._read(torch.tensor(ids))
        tokens: list[int] = []
        while len(tokens) < ANSWER:
            token = int(self._base.logits(last).argmax())
            tokens.append(token)
            if token in self._model.stop_ids:
                break
            last, kept = self._step(token, len(ids) + len(tokens) - 1, kept)
        return Reply(self._model.tokenizer.decode(tokens), torch.nan, torch.nan)

    def _read(self, ids: Tensor) -> tuple[Tensor, list[KeptKV]]:
        """The last hidden row, and the pairs that each layer keeps."""
        base, kept = self._base, []
        x, turns = base.embed(ids), base.turns(torch.arange(len(ids)))
        for layer in base.layers:
            q, k, v = base.heads(layer, x, turns)
            group = len(q) // len(k)
            keys, values = (each.repeat_interleave(group, 0) for each in (k, v))
            x = base.finish(layer, x, F.scaled_dot_product_attention(q, keys, values, is_causal=True))
            chosen = select(q, k, places=self._places, sink=self._sink, window=self._window)
            index = chosen[..., None].expand(-1, -1, k.shape[-1])
            kept.append(KeptKV(k.gather(1, index), v.gather(1, index)))
        return base.final(x[-1]), kept

    def _step(self, token: int, position: int, kept: list[KeptKV]) -> tuple[Tensor, list[KeptKV]]:
        """The hidden row of a token of the answer, and the pairs kept with it."""
        base, after = self._base, []
        x, turns = base.embed(torch.tensor([token])), base.turns(torch.tensor([position]))
        for layer, before in zip(base.layers, kept, strict=True):
            q, k, v = base.heads(layer, x, turns)
            own = before.and_one(k, v)
            group = len(q) // len(k)
            keys, values = (each.repeat_interleave(group, 0) for each in (own.keys, own.values))
            x = base.finish(layer, x, F.scaled_dot_product_attention(q, keys, values))
            after.append(own)
        return base.final(x[-1]), after


def select(q: Tensor, k: Tensor, *, places: int, sink: int, window: int) -> Tensor:
    """The places [KH, n] that each KV head keeps, in order; n is `places`, or all if there are fewer.

    q [H, L, D], k [KH, L, D]. The shares of the queries of one KV head are added up.
    """
    heads, length = k.shape[:2]
    if length <= places:
        return torch.arange(length).expand(heads, -1)
    observed = min(OBSERVED, length)
    scores = (q[:, -observed:] @ k.repeat_interleave(len(q) // heads, 0).transpose(1, 2)) * q.shape[-1] ** -0.5
    ahead = torch.ones(observed, length, dtype=torch.bool).triu(length - observed + 1)
    shares = scores.masked_fill(ahead, -torch.inf).softmax(-1).sum(1)
    votes = shares.unflatten(0, (heads, -1)).sum(1)
    votes = F.max_pool1d(votes[None], POOL, stride=1, padding=POOL // 2)[0]
    votes[:, :sink] = torch.inf
    votes[:, length - window :] = torch.inf
    return votes.argsort(dim=-1, descending=True, stable=True)[:, :places].sort(-1).values
