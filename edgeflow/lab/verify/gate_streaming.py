"""Algorithm 1 of EdgeInfinite, one sequence and one pass at a time, head by head: the naive twin of the executor.

The sink's keys and values stay. Each segment runs in a separate pass, reads the memory of those before it, and is
added to the memory afterwards; the rest runs in the last pass. A token that completes a segment during decoding folds
it, according to the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.memory import GateLayer
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.models.memory_gate import GateRules, MemoryGate

Pairs = tuple[Tensor, Tensor]
"""Keys and values, each [KH, n, D]."""


@dataclass(frozen=True, slots=True, eq=False)
class GateMemory:
    """The compressed memory of a gate."""

    sums: Tensor
    """M, [layers, KH, D, D] float32."""
    norms: Tensor
    """z, [layers, KH, D] float32."""

    @classmethod
    def empty(cls, base: PlainBase) -> GateMemory:
        """A memory of zeros."""
        config = base.config
        shape = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        return cls(base.norm.new_zeros(*shape, config.head_dim).float(), base.norm.new_zeros(shape).float())


@dataclass(frozen=True, slots=True, eq=False)
class GatePass:
    """The result of a pass."""

    logits: Tensor
    """[V]: logits of its last row."""
    hidden: Tensor
    """[T, E]: rows after the final norm."""
    a_mem: list[Tensor]
    a_com: list[Tensor]
    """`a_mem`, `a_com` [H, T, D] of each layer; empty if the pass read no memory."""


class StreamingTwin:
    """One sequence.

    ids: the known tokens. memories: the memory after each fold. folds_at: known tokens at each fold while decoding.
    without_memory: the gate is left out wherever there is memory (ablations).
    """

    def __init__(self, base: PlainBase, gate: MemoryGate, *, without_memory: bool = False) -> None:
        self.ids: list[int] = []
        self.memories: list[GateMemory] = []
        self.folds_at: list[int] = []
        self._base, self._gate, self._without_memory = base, gate, without_memory
        self._held: list[Pairs] = []  # of each layer: the sink's, then those kept

    @property
    def rules(self) -> GateRules:
        return self._gate.rules

    @property
    def folded(self) -> int:
        """Number of segments in memory."""
        return len(self.memories)

    @property
    def residual(self) -> int:
        """Number of known tokens that are neither in the sink nor in the window nor folded; negative if there are too
        few.
        """
        rules = self.rules
        return len(self.ids) - rules.sink - rules.window - rules.segment * self.folded

    def prefill(self, ids: Sequence[int]) -> GatePass:
        """Run a prompt; return the result of its last pass."""
        rules = self.rules
        self.ids, self.memories, self.folds_at = list(ids), [], []
        self._held = [(each, each) for each in self._no_pairs()]
        if len(ids) < rules.threshold:
            return self._kept(0, len(ids), None)
        if rules.sink:
            self._kept(0, rules.sink, None)
        for index in range(rules.segments(len(ids))):
            start = rules.sink + index * rules.segment
            self._fold(self._run(start, start + rules.segment, self._memory(long_route=True))[1])
        return self._kept(rules.sink + self.folded * rules.segment, len(ids), self._memory())

    def step(self, token: int) -> GatePass:
        """Run one more token; folds the oldest segment if this token completes one."""
        rules = self.rules
        self.ids.append(token)
        known = len(self.ids)
        if self.residual < rules.segment:
            return self._kept(known - 1, known, self._memory())
        self.folds_at.append(known)
        start = rules.sink + self.folded * rules.segment
        oldest = [_part(each, rules.sink, rules.sink + rules.segment) for each in self._held]
        if rules.fold == "cached":
            rest = [_part(each, rules.sink + rules.segment) for each in self._held]
            self._forget()
            self._fold(oldest)
            self._hold(rest)
            return self._kept(known - 1, known, self._memory())
        self._forget()
        if rules.first_segment == "zero" and not self.folded:  # it ran without memory, like every short text
            oldest = self._run(start, start + rules.segment, self._memory(long_route=True))[1]
        self._fold(oldest)
        return self._kept(known - rules.window, known, self._memory())

    def _memory(self, *, long_route: bool = False) -> GateMemory | None:
        """The memory that a pass reads.

        long_route: the pass runs the tokens of a segment.
        """
        if self.memories:
            return self.memories[-1]
        return GateMemory.empty(self._base) if long_route and self.rules.first_segment == "zero" else None

    def _kept(self, start: int, stop: int, memory: GateMemory | None) -> GatePass:
        """Run a pass and keep its keys and values."""
        outcome, pairs = self._run(start, stop, memory)
        self._hold(pairs)
        return outcome

    def _run(self, start: int, stop: int, memory: GateMemory | None) -> tuple[GatePass, list[Pairs]]:
        """One pass of tokens start .. stop; also the keys and values of each layer."""
        base = self._base
        back = self.rules.segment * self.folded if self.rules.positions == "local" else 0
        positions = torch.arange(start, stop, device=base.norm.device) - back
        x, turns = base.embed(torch.tensor(self.ids[start:stop], device=base.norm.device)), base.turns(positions)
        pairs, reads, mixed = [], [], []
        for index, layer in enumerate(base.layers):
            q, k, v = base.heads(layer, x, turns)
            attended = _attend(q, _joined(self._held[index], (k, v)))
            if memory is not None and not self._without_memory:
                read = _read(q, memory.sums[index], memory.norms[index], self.rules)
                attended = _mix(read, attended, self._gate.layers[index])
                reads.append(read)
                mixed.append(attended)
            x = base.finish(layer, x, attended)
            pairs.append((k, v))
        hidden = base.final(x)
        return GatePass(base.logits(hidden[-1]), hidden, reads, mixed), pairs

    def _hold(self, pairs: Sequence[Pairs]) -> None:
        self._held = [_joined(held, new) for held, new in zip(self._held, pairs, strict=True)]

    def _forget(self) -> None:
        """Drop all pairs except the sink's."""
        self._held = [_part(each, 0, self.rules.sink) for each in self._held]

    def _fold(self, pairs: Sequence[Pairs]) -> None:
        """Add the pairs of a segment to the memory."""
        before = self._memory() or GateMemory.empty(self._base)
        sums, norms = before.sums.clone(), before.norms.clone()
        for index, own in enumerate(pairs):
            if self.rules.memory_content == "sink_and_segment":
                own = _joined(_part(self._held[index], 0, self.rules.sink), own)
            for head, (keys, values) in enumerate(zip(*own, strict=True)):
                marked = _feature(keys, self.rules)
                sums[index, head] += marked.T @ values.float()
                norms[index, head] += marked.sum(0)
        self.memories.append(GateMemory(sums, norms))

    def _no_pairs(self) -> list[Tensor]:
        config = self._base.config
        empty = self._base.norm.new_empty(config.num_key_value_heads, 0, config.head_dim)
        return [empty] * config.num_hidden_layers


def greedy(twin: StreamingTwin, ids: Sequence[int], tokens: int) -> tuple[list[int], list[GatePass]]:
    """The greedy tokens after a prompt, and the passes that they come from."""
    passes = [twin.prefill(ids)]
    drawn = [int(passes[-1].logits.argmax())]
    while len(drawn) < tokens:
        passes.append(twin.step(drawn[-1]))
        drawn.append(int(passes[-1].logits.argmax()))
    return drawn, passes


def _attend(q: Tensor, pairs: Pairs) -> Tensor:
    """Softmax attention of the newest rows over all pairs, head by head, causal among the rows: [H, T, D]"""
    keys, values = pairs
    rows, before = q.shape[1], keys.shape[1] - q.shape[1]
    hidden = torch.ones(rows, keys.shape[1], dtype=torch.bool, device=q.device).triu(before + 1)
    group = len(q) // len(keys)
    out = []
    for head, query in enumerate(q):
        scores = query @ keys[head // group].T / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out.append(weights @ values[head // group])
    return torch.stack(out)


def _read(q: Tensor, sums: Tensor, norms: Tensor, rules: GateRules) -> Tensor:
    """A_mem of each head, in float32: [H, T, D]"""
    group = len(q) // len(sums)
    out = []
    for head, query in enumerate(q):
        marked = _feature(query, rules)
        below = (marked @ norms[head // group]).clamp(min=rules.eps)
        out.append(marked @ sums[head // group] / below[:, None])
    return torch.stack(out)


def _mix(read: Tensor, attended: Tensor, gate: GateLayer) -> Tensor:
    """A_com of each head: [H, T, D]"""
    out = []
    for head, (memory, dot) in enumerate(zip(read.to(attended.dtype), attended, strict=True)):
        w1, b1, w2, b2, g = (each[head % len(each)] for each in gate.tensors().values())
        inner = F.linear(F.relu(F.linear(memory, w1, b1)), w2, b2)
        out.append(g.sigmoid() * inner + (1 - g.sigmoid()) * dot)
    return torch.stack(out)


def _feature(x: Tensor, rules: GateRules) -> Tensor:
    """sigma of keys or queries, in float32."""
    return F.elu(x.float()) + 1 if rules.activation == "elu_plus_one" else F.relu(x.float())


def _joined(first: Pairs, second: Pairs) -> Pairs:
    return torch.cat((first[0], second[0]), dim=1), torch.cat((first[1], second[1]), dim=1)


def _part(pairs: Pairs, start: int, stop: int | None = None) -> Pairs:
    return pairs[0][:, start:stop], pairs[1][:, start:stop]
