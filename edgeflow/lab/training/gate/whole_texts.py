"""EdgeInfinite over whole texts at once, with masks and running sums: the second twin, used to train gates.

All segments of several texts run side by side: each attends to the sink and causally inside itself, and reads sums
over the segments before it. Gradients pass through everything that a gate influences, including memory. The tokens
before the first gated one are computed without gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgeflow.kernels.kv.memory import GateLayer
from edgeflow.lab.training.gate.plain_base import PlainBase, PlainLayer, Turns
from edgeflow.models.memory_gate import GateRules, MemoryGate

Pairs = tuple[Tensor, Tensor]
"""Keys and values."""


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """How texts of `length` tokens are cut: the sink, `segments` whole segments, then the rest."""

    rules: GateRules
    length: int
    segments: int

    @property
    def plain(self) -> int:
        """Number of tokens at the start that no gate influences."""
        if not self.segments:
            return self.length
        return self.rules.sink + (self.rules.segment if self.rules.first_segment == "bypass" else 0)

    @property
    def rest(self) -> int:
        """Number of tokens after the last whole segment."""
        return self.length - self.rules.sink - self.segments * self.rules.segment

    @property
    def gated_segments(self) -> int:
        """Number of whole segments whose tokens are gated."""
        return (self.length - self.plain - self.rest) // self.rules.segment if self.segments else 0

    def positions(self, device: torch.device) -> Tensor:
        """RoPE positions [L]."""
        rules, place = self.rules, torch.arange(self.length, device=device)
        if rules.positions == "absolute":
            return place
        before = (place - rules.sink).clamp(min=0) // rules.segment
        return place - before.clamp(max=self.segments) * rules.segment


@dataclass(frozen=True, slots=True, eq=False)
class GatedRows:
    """One layer's results for the gated rows. sums [B, KH, N, D, D + 1] float32: M and, in the last column, z after
    each segment.
    """

    read: Tensor
    mixed: Tensor
    """`read`, `mixed` [B, H, n, D]: A_mem and A_com; read is float32."""
    sums: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WholeTextRun:
    """The result for whole texts."""

    plain: Tensor
    gated: Tensor
    """`plain` [B, p, E], `gated` [B, L - p - skipped, E]: rows after the final norm; p is the cut's `plain`."""
    skipped: int
    """Number of first gated rows that were left out."""
    seen: list[GatedRows]
    """Results by layer, if requested; empty if nothing is gated."""


def run_whole_texts(
    base: PlainBase,
    gate: MemoryGate,
    ids: Tensor,
    segments: int,
    *,
    needed: int = 0,
    checkpointing: bool = False,
    watch: bool = False,
) -> WholeTextRun:
    """Run texts ids [B, L] with `segments` segments folded when their rest is read.

    needed: the first gated row that is needed; if it is in the rest, the last layer leaves out the segments.
    checkpointing: keep one tensor of each layer for the gradients and compute the others again. watch: fill `seen`.
    """
    cut = SegmentCut(gate.rules, ids.shape[1], segments)
    if segments and cut.rest < 1:
        raise ValueError(f"{segments} segments do not fit into {cut.length} tokens")
    folded = cut.gated_segments * gate.rules.segment
    skipped = folded if needed >= folded else 0
    x, turns, split = base.embed(ids), base.turns(cut.positions(ids.device)), cut.plain
    plain, gated, seen = x[:, :split], x[:, split:], []
    plain_turns, gated_turns = ((turns[0][part], turns[1][part]) for part in (slice(split), slice(split, None)))
    for layer, own in zip(base.layers, gate.layers, strict=True):
        with torch.no_grad():
            plain, k, v = _plain_layer(base, layer, plain, plain_turns)
        if cut.segments:
            last = layer is base.layers[-1]
            run = _GatedLayer(
                base=base, layer=layer, gate=own, cut=cut, turns=gated_turns, skipped=skipped if last else 0
            )
            outcome: tuple[Tensor, GatedRows] = (
                checkpoint(run, gated, k, v, use_reentrant=False) if checkpointing else run(gated, k, v)
            )
            gated = outcome[0]
            seen += [outcome[1]] if watch else []
    return WholeTextRun(base.final(plain), base.final(gated), skipped if cut.segments else 0, seen)


def _plain_layer(base: PlainBase, layer: PlainLayer, x: Tensor, turns: Turns) -> tuple[Tensor, Tensor, Tensor]:
    """The layer as in the base: rows, keys and values."""
    q, k, v = base.heads(layer, x, turns)
    keys, values = _of_queries((k, v), q.shape[1])
    return base.finish(layer, x, F.scaled_dot_product_attention(q, keys, values, is_causal=True)), k, v


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GatedLayer:
    """A layer for the gated rows."""

    base: PlainBase
    layer: PlainLayer
    gate: GateLayer
    cut: SegmentCut
    turns: Turns
    skipped: int
    """Number of first rows for which only keys and values are computed."""

    def __call__(self, x: Tensor, k0: Tensor, v0: Tensor) -> tuple[Tensor, GatedRows]:
        """Rows x [B, n, E] through the layer. k0, v0 [B, KH, p, D]: of the rows before them."""
        rules, folded = self.cut.rules, self.cut.gated_segments * self.cut.rules.segment
        q, k, v = self.base.heads(self.layer, x, self.turns)
        sink = k0[:, :, : rules.sink], v0[:, :, : rules.sink]
        q, x = q[:, :, self.skipped :], x[:, self.skipped :]
        attended = _attend(q, (k, v), sink, self.cut)
        own = (torch.cat((old[:, :, rules.sink :], new[:, :, :folded]), 2) for old, new in ((k0, k), (v0, v)))
        sums = _folds((next(own), next(own)), rules, rules.segment)
        if rules.memory_content == "sink_and_segment" and rules.sink:
            sums = sums + _folds(sink, rules, rules.sink)
        sums = sums.cumsum(2)
        read = _read(_feature(q, rules), sums, self.cut)
        mixed = _mix(read, attended, self.gate)
        return self.base.finish(self.layer, x, mixed), GatedRows(read, mixed, sums)


def _attend(q: Tensor, pairs: Pairs, sink: Pairs, cut: SegmentCut) -> Tensor:
    """A_dot [B, H, n, D]: each segment, and the rest, over the sink and causally over itself.

    q: of all rows, or only of the rest.
    """
    heads, folded = q.shape[1], q.shape[2] - cut.rest
    first, (k, v) = _of_queries(sink, heads), _of_queries(pairs, heads)
    rest = _attend_blocks(q[:, :, folded:], (k[:, :, -cut.rest :], v[:, :, -cut.rest :]), first, cut.rest)
    if not folded:
        return rest
    segments = (k[:, :, :folded], v[:, :, :folded])
    return torch.cat((_attend_blocks(q[:, :, :folded], segments, first, cut.rules.segment), rest), 2)


def _attend_blocks(q: Tensor, pairs: Pairs, sink: Pairs, size: int) -> Tensor:
    """Attention inside blocks of `size` rows, each after the sink: [B, H, n, D]."""
    blocks, before = q.shape[2] // size, sink[0].shape[2]
    keys, values = (
        torch.cat((first[:, :, None].expand(-1, -1, blocks, -1, -1), _blocks(own, size)), 3).flatten(1, 2)
        for first, own in zip(sink, pairs, strict=True)
    )
    seen = torch.ones(size, before + size, dtype=torch.bool, device=q.device).tril(before)
    return F.scaled_dot_product_attention(_blocks(q, size).flatten(1, 2), keys, values, seen).reshape(q.shape)


def _folds(pairs: Pairs, rules: GateRules, size: int) -> Tensor:
    """The sums that each block of `size` rows adds to memory: [B, KH, N, D, D + 1]"""
    marked, values = _feature(pairs[0], rules), F.pad(pairs[1].float(), (0, 1), value=1.0)
    return _blocks(marked, size).transpose(-1, -2) @ _blocks(values, size)


def _read(marked: Tensor, sums: Tensor, cut: SegmentCut) -> Tensor:
    """A_mem of the rows [B, H, n, D], float32. marked: sigma of their queries; sums: after each segment."""
    batch, heads, rows, width = marked.shape
    folded, kv_heads = rows - cut.rest, sums.shape[1]
    segments = folded // cut.rules.segment
    grouped = marked.view(batch, kv_heads, heads // kv_heads, rows, width)
    both = grouped[:, :, :, folded:] @ sums[:, :, -1:]
    if segments:
        before = F.pad(sums, (0, 0, 0, 0, 1, 0))[
            :, :, -1 - segments : -1, None
        ]  # the memory that each gated segment reads
        own = grouped[:, :, :, :folded].reshape(batch, kv_heads, -1, segments, cut.rules.segment, width)
        read = own.transpose(2, 3) @ before  # [B, KH, N, H / KH, G, D + 1]
        both = torch.cat((read.transpose(2, 3).flatten(3, 4), both), 3)
    both = both.flatten(1, 2)
    return both[..., :-1] / both[..., -1:].clamp(min=cut.rules.eps)


def _mix(read: Tensor, attended: Tensor, gate: GateLayer) -> Tensor:
    """A_com: [B, H, n, D]"""
    w1, b1, w2, b2, g = (each.to(attended.dtype) for each in gate.tensors().values())
    inner = _linear(F.relu(_linear(read.to(attended.dtype), w1, b1)), w2, b2)
    return torch.lerp(attended, inner, g.sigmoid()[:, None])


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [B, H, n, i], weight [1 or H, o, i], bias [1 or H, o] → [B, H, n, o]"""
    if len(weight) == 1:
        return F.linear(x, weight[0], bias[0])
    return x @ weight.transpose(-1, -2) + bias[:, None]


def _feature(x: Tensor, rules: GateRules) -> Tensor:
    """sigma, in float32."""
    return F.relu(x.float()) if rules.activation == "relu" else F.elu(x.float()) + 1


def _of_queries(pairs: Pairs, heads: int) -> Pairs:
    """The pairs of each query head: [B, KH, n, D] → [B, H, n, D]"""
    group = heads // pairs[0].shape[1]
    if group == 1:
        return pairs
    return pairs[0].repeat_interleave(group, dim=1), pairs[1].repeat_interleave(group, dim=1)


def _blocks(x: Tensor, size: int) -> Tensor:
    """[B, heads, n, D] → [B, heads, n / size, size, D]"""
    return x.reshape(*x.shape[:2], -1, size, x.shape[-1])
