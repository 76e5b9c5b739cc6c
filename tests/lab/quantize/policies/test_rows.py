"""The rows of a policy through the blocks of the search, against the decoder that serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from edgeflow.engine.flow.rows import FlowLayouts, PrefixSegment
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.quantize.policies.served import ActionRows, FrameRows, ServedPolicy
from edgeflow.lab.quantize.policies.sources import PolicySource
from tests.lab.quantize.policies.cases import EMBEDDED, KINDS, opened

CPU = torch.device("cpu")
FRAMES = 6


@torch.inference_mode()
def through_blocks(source: PolicySource, rows: FrameRows) -> list[Tensor]:
    """The rows after the last block and the final norm, [L, E] of each frame."""
    decoder = source.source.decoder
    hidden, rotation = list(rows.hidden), decoder.rotation(rows.longest)
    for block in decoder.blocks():
        hidden = [block.run(each, rotation).hidden for each in hidden]
    norm = decoder.weights[f"{decoder.stem}norm.weight"] + decoder.shape.plus_one
    return [
        row * torch.rsqrt(row.square().mean(-1, keepdim=True) + decoder.shape.eps) * norm
        for batch in hidden
        for row in batch
    ]


@torch.inference_mode()
def through_the_served_one(source: PolicySource, served: ServedPolicy, rows: FrameRows) -> list[Tensor]:
    policy, frames = served.policy, [row for batch in rows.hidden for row in batch]
    if source.actions is not None:
        kv = policy.decoder.kv_slots(1, rows.longest)
        layouts = [PackedLayout.of([Span(slot=0, start=0, length=len(each))], CPU) for each in frames]
        through = [policy.decoder.forward(each, layout, kv) for each, layout in zip(frames, layouts, strict=True)]
        return [policy.decoder.final_norm(each, "prefill") for each in through]
    decoder = policy.network.decoder
    kv, layouts = decoder.kv_slots(1, rows.longest), FlowLayouts(policy.sizes, decoder.kinds)
    placed = [layouts.of([PrefixSegment(slot=0, rows=len(each))], []).layout for each in frames]
    return [
        decoder.run(each, each[:0], layout, kv, None, norm_prefix=True)[0]
        for each, layout in zip(frames, placed, strict=True)
    ]


@pytest.mark.parametrize("kind", [*KINDS, *EMBEDDED])
def test_the_blocks_agree_with_the_decoder_that_serves(kind: str, tmp_path: Path):
    """A wrong mask, RoPE, norm or gate is off by 0.01 and more."""
    source, served, rows = opened(kind, tmp_path / "policy", FRAMES)
    pairs = zip(through_blocks(source, rows), through_the_served_one(source, served, rows), strict=True)
    for found, wanted in pairs:
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.parametrize("kind", ["openvla", "embedded openvla"])
def test_the_counted_rows_give_the_tokens_of_the_float_policy(kind: str, tmp_path: Path):
    source, served, rows = opened(kind, tmp_path / "policy", FRAMES)
    assert isinstance(rows, ActionRows)
    hidden = through_blocks(source, rows)
    head = source.source.decoder.weights[source.source.decoder.head]
    counted = [mask for batch in rows.counted for mask in batch]
    wanted = [tokens for batch in rows.tokens for tokens in batch]
    assert sum(map(len, rows.tokens)) == FRAMES
    for found, mask, tokens in zip(hidden, counted, wanted, strict=True):
        assert torch.equal((found[mask] @ head.t()).argmax(1), tokens)
    assert sorted(map(tuple, torch.stack(wanted).tolist())) == sorted(served.tokens())
