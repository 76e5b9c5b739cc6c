"""Prefill and step of fixed shapes against the served decoder: chunks behind a past, batches of sequences."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.export.graphs.tokens import TokenExport, token_program
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow_client.errors import ConfigError
from tests.models.test_llama import CPU, VARIANTS, decoder

TOLERANCE = 1e-5  # of the largest logit
POSITIONS, CHUNK = 24, 6
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 79]  # a whole chunk, and one that is not full
ANSWER = [32, 38, 46]


def program_of(config: LlamaConfig, **changed: object) -> ModelProgram:
    model = decoder(config, table=static_table())
    export = {
        "decoder": model,
        "embed": lambda ids: model.embed(ids[0])[None],
        "images": {},
        "fixed_rows": 0,
        "text": (CHUNK,),
        "positions": POSITIONS,
        "chunks": True,
        "batches": (2,),
    }
    return token_program(TokenExport(**export | changed))


class NoisySlot:
    """Keys and values of one sequence, noise where nothing was written."""

    def __init__(self, program: ModelProgram) -> None:
        kv = program.kv
        generator = torch.Generator().manual_seed(len(PROMPT))
        self.places = torch.randn(2 * kv.layers, POSITIONS, kv.kv_heads, kv.head_dim, generator=generator) * 9
        self.length = 0

    def enter(self, rows: list[Tensor], count: int) -> None:
        """Rows [R, KH, D] of all layers, of which `count` are real."""
        self.places[:, self.length : self.length + count] = torch.stack(rows)[:, :count]
        self.length += count


def prefill(program: ModelProgram, slot: NoisySlot, ids: list[int]) -> Tensor:
    """Run a chunk; the logits of its last row [V]."""
    towers, stage, _ = program.stages
    padded = torch.tensor([ids + [0] * (CHUNK - len(ids))])
    seen = torch.cat([torch.arange(POSITIONS).expand(CHUNK, -1) < slot.length, torch.eye(CHUNK, dtype=torch.bool)], 1)
    own = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    seen[: len(ids), POSITIONS : POSITIONS + len(ids)] = own
    position = (slot.length + torch.arange(CHUNK)).clamp(max=POSITIONS - 1)
    logits, *rows = stage.run(
        *towers.run(padded), position[None], seen[None], torch.tensor([len(ids) - 1]), *slot.places[:, None]
    )
    slot.enter([each[0] for each in rows], len(ids))
    return logits[0]


def step(program: ModelProgram, slots: list[NoisySlot], ids: list[int]) -> Tensor:
    """Run a token of each sequence; logits [B, V]."""
    stage: StageGraph = program.stages[-1]
    lengths = torch.tensor([slot.length for slot in slots])[:, None]
    seen = torch.cat([torch.arange(POSITIONS) < lengths, torch.ones(len(slots), 1, dtype=torch.bool)], 1)
    past = torch.stack([slot.places for slot in slots], dim=1)
    logits, *rows = stage.run(torch.tensor(ids)[:, None], lengths, seen[:, None], *past)
    for index, slot in enumerate(slots):
        slot.enter([each[index] for each in rows], 1)
    return logits


@torch.inference_mode()
def by_decoder(model: LlamaDecoder, ids: list[int]) -> Tensor:
    """The logits of every row [L, V] as they are served."""
    kv = model.kv_slots(1, POSITIONS)
    hidden = model.forward(model.embed(torch.tensor(ids)), PackedLayout.of([Span(0, 0, len(ids))], CPU), kv)
    return model.logits(hidden, "prefill")


@pytest.mark.parametrize("name", VARIANTS)
def test_chunks_and_steps_equal_those_of_the_served_decoder(name: str):
    program, model = program_of(VARIANTS[name]), decoder(VARIANTS[name])
    texts = [PROMPT, PROMPT[::-1][:4]]
    slots = [NoisySlot(program) for _ in texts]
    found = []
    with torch.inference_mode():
        for slot, text in zip(slots, texts, strict=True):
            cuts = pairwise([*range(0, len(text), CHUNK), len(text)])
            found.append([prefill(program, slot, text[start:stop]) for start, stop in cuts][-1])
        for token in ANSWER:
            found += step(program, slots, [token, token + 1])
    expected = [by_decoder(model, text)[-1] for text in texts]
    for count in range(1, len(ANSWER) + 1):
        for more, text in enumerate(texts):
            expected.append(by_decoder(model, text + [token + more for token in ANSWER[:count]])[-1])
    for logits, wanted in zip(found, expected, strict=True):
        assert (logits - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


def test_a_bucket_beyond_the_positions_is_rejected_with_both_numbers():
    with pytest.raises(ConfigError, match="a bucket of 25 tokens takes 25 rows and a slot has 24 positions"):
        program_of(VARIANTS["gqa"], text=(25,))
    with pytest.raises(ConfigError, match="positions: 4000; the model has 2048"):
        program_of(VARIANTS["gqa"], positions=4000)
