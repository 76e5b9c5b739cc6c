"""A naive twin of the head and of its trees: no KV store, no masks, no operators.

Every row of a tree is computed by itself, as the last row of a causal pass over the sequence and its path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.trees import TreeSizes


@dataclass(frozen=True)
class Path:
    """A sequence of rows. features: each [E]; tokens: of the base; positions: each one's components."""

    features: tuple[Tensor, ...]
    tokens: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]

    def then(self, feature: Tensor, token: int, position: tuple[int, ...]) -> Path:
        return Path((*self.features, feature), (*self.tokens, token), (*self.positions, position))


@dataclass(frozen=True)
class NaiveHead:
    """tensors: by their original names, in float64. embedding [V, E]."""

    config: Eagle3Config
    tensors: dict[str, Tensor]
    embedding: Tensor

    def hidden(self, path: Path) -> Tensor:
        """[L, E], all rows of a path."""
        text, feature = self.config.text, torch.stack(path.features)
        embedded = self.embedding[torch.tensor(path.tokens)]
        normed = self._norm(feature, "midlayer.hidden_norm")
        x = torch.cat([self._norm(embedded, "midlayer.input_layernorm"), normed], 1)
        residual = normed if self.config.norm_before_residual else feature
        q, k, v = (self._heads(x, name) for name in "qkv")
        q, k = self._rotated(q, path.positions), self._rotated(k, path.positions)
        k, v = (each.repeat_interleave(text.num_attention_heads // text.num_key_value_heads, 1) for each in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / text.head_dim**0.5
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        attended = torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).flatten(1)
        residual = residual + attended @ self.tensors["midlayer.self_attn.o_proj.weight"].T
        x = self._norm(residual, "midlayer.post_attention_layernorm")
        gate, up = (x @ self.tensors[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return residual + (gate * gate.sigmoid() * up) @ self.tensors["midlayer.mlp.down_proj.weight"].T

    def best(self, hidden: Tensor, width: int) -> list[tuple[float, int]]:
        """Log probabilities and tokens of the base that follow a row [E], best first."""
        logits = self._norm(hidden, "norm") @ self.tensors["lm_head.weight"].T
        found = logits.float().log_softmax(0).nan_to_num(nan=-torch.inf)
        values, ids = found.topk(width)
        offsets = self.tensors.get("d2t", torch.zeros(self.config.draft_vocabulary, dtype=torch.long))
        return list(zip(values.tolist(), (ids + offsets[ids]).tolist(), strict=True))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.config.text.rms_norm_eps).sqrt() * self.tensors[f"{name}.weight"]

    def _heads(self, x: Tensor, name: str) -> Tensor:
        projected = x @ self.tensors[f"midlayer.self_attn.{name}_proj.weight"].T
        if self.config.text.attention_bias:
            projected = projected + self.tensors[f"midlayer.self_attn.{name}_proj.bias"]
        return projected.view(len(x), -1, self.config.text.head_dim)

    def _rotated(self, x: Tensor, positions: tuple[tuple[int, ...], ...]) -> Tensor:
        text, half = self.config.text, self.config.text.head_dim // 2
        sections = text.rope.sections or (half,)
        component = [index for index, count in enumerate(sections) for _ in range(count)]
        turned = torch.empty_like(x)
        for row, position in enumerate(positions):
            for pair in range(half):
                at = position[component[pair] if len(position) > 1 else 0]
                frequency = 1.0 / text.rope_theta ** (torch.tensor(2.0 * pair) / text.head_dim)
                angle = torch.tensor(float(at)) * frequency
                cos, sin = angle.cos().double(), angle.sin().double()
                a, b = x[row, :, pair], x[row, :, pair + half]
                turned[row, :, pair], turned[row, :, pair + half] = a * cos - b * sin, b * cos + a * sin
        return turned


@dataclass(frozen=True)
class _Candidate:
    token: int
    score: float
    parent: int
    path: Path
    feature: Tensor
    level: int


def naive_tree(
    head: NaiveHead, known: Path, hidden: Tensor, position: tuple[int, ...], sizes: TreeSizes
) -> tuple[list[int], list[int]]:
    """Tokens and parents as in `grow`. known: the sequence. hidden [E]: of its last row. position: of the next."""
    first = head.best(hidden, sizes.width)
    candidates = [_Candidate(token, score, -1, known, hidden, 0) for score, token in first]

    def expand(beam: list[int], left: int) -> None:
        if not left:
            return
        start = len(candidates)
        for index in beam:
            own = candidates[index]
            path = own.path.then(own.feature, own.token, tuple(each + own.level for each in position))
            out = head.hidden(path)[-1]
            for score, token in head.best(out, sizes.width):
                total = (torch.tensor(own.score) + torch.tensor(score)).item()  # a sum of float32
                candidates.append(_Candidate(token, total, index, path, out, own.level + 1))
        expand(_best_of(candidates, range(start, len(candidates)), sizes.width), left - 1)

    expand(list(range(sizes.width)), sizes.depth)
    chosen = sorted(_best_of(candidates, range(len(candidates)), sizes.rows - 1))
    rows = {-1: 0, **{index: row for row, index in enumerate(chosen, start=1)}}
    return [candidates[index].token for index in chosen], [rows[candidates[index].parent] for index in chosen]


def _best_of(candidates: list[_Candidate], among: range, count: int) -> list[int]:
    return sorted(among, key=lambda index: (-candidates[index].score, index))[:count]
