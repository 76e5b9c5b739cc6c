"""The logits of a row computed alone and among others: nearly the same in float32; where numbers are rounded on
the way, a near tie may fall the other way, and no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import FP8, INT4, INT8, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.verify.comparison import NEAR_TIES
from edgeflow.models.chat import ChatModel, load_chat_model
from tests.engine.drafts.drafters import CPU
from tests.engine.drafts.near_ties import NEAR_OF_FLOATS, NEAR_OF_ROUNDED_ROWS
from tests.engine.drafts.varied_models import varied_model, write_talkative
from tests.quantised import quantised_copies

COUNTS = (1, 2, 3, 5, 9, 17, 30)
TEXT = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
def logits_in_chunks(model: ChatModel, count: int, kv_format: KVFormat | None = None) -> Tensor:
    """[n, V] of every row of the text, so many rows a pass."""
    kv, found = model.decoder.kv_slots(1, len(TEXT), kv_format), []
    for start in range(0, len(TEXT), count):
        ids = TEXT[start : start + count]
        hidden = model.decoder.forward(model.embed(ids), PackedLayout.of([Span(0, start, len(ids))], CPU), kv)
        found.append(model.decoder.logits(hidden, "prefill" if count > 1 else "decode"))
    return torch.cat(found)


def off(model: ChatModel, kv_format: KVFormat | None = None) -> float:
    """The largest difference of a logit between any number of rows a pass and the whole text at once, in standard
    deviations of its row."""
    whole = logits_in_chunks(model, len(TEXT), kv_format)
    each = [(logits_in_chunks(model, count, kv_format) - whole).abs().amax(-1) / whole.std(-1) for count in COUNTS]
    return float(torch.stack(each).max())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("model"), "qwen2")


def test_floats(model: ChatModel):
    assert off(model) < NEAR_OF_FLOATS / 2


@pytest.mark.parametrize("kv_format", [INT8, FP8, INT4], ids=lambda each: each.name)
def test_keys_and_values_of_fewer_bits(model: ChatModel, kv_format: KVFormat):
    assert off(model, kv_format) < NEAR_TIES[kv_format.name] / 2


def test_weights_of_four_bits(tmp_path: Path):
    write_talkative(tmp_path / "source", "qwen2", hidden_size=64, intermediate_size=96, num_attention_heads=4)
    four, _ = quantised_copies(tmp_path / "source", tmp_path, "model.", [])
    assert off(load_chat_model(four, torch.float32, CPU)) < NEAR_OF_ROUNDED_ROWS / 2
