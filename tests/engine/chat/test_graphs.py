"""A request whose passes are replayed gets the tokens of one whose passes are run."""

from __future__ import annotations

import pytest
import torch

from edgeflow.engine.chat.graphs import ReplayedPasses, replayed
from edgeflow.engine.generate import Generation, generate, run_pass
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.errors import ConfigError
from edgeflow.kernels.layout import PackedLayout
from edgeflow.kernels.table import built_in_table
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.recorded import record
from tests.engine.test_generate import CAPACITY, CPU, poisoned, prompt_of

CHUNK = 4
ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", linear="gemm")


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def model(request, tmp_path_factory) -> ChatModel:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp(request.param)
    write_chat_checkpoint(directory, request.param)
    return load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)


def request(model: ChatModel, prompt: Prompt, slot: int) -> Generation:
    return Generation(model, prompt, SamplingParams(max_tokens=6), slot, CAPACITY, ignore_stop=True)


def test_replayed_chunks_and_decode_rows_give_the_tokens_of_eager_ones(model: ChatModel):
    replays: list[int] = []

    def counting(program):
        replay, outputs = record(program)
        return (lambda: (replays.append(1), replay())), outputs

    kv = poisoned(model, 3)
    passes, told = replayed(model, model, kv, CHUNK, required=True, record=counting)
    assert told == f"{2 if model.vision is None else 3} graphs"
    ran = 0
    for slot, text in ((2, "abcdefg hgfedcba"), (1, "badcfe")):
        prompt = prompt_of(model, text)
        expected = request(model, prompt, 0)
        list(generate(model, poisoned(model, 1), expected, 1000))
        found = request(model, prompt, slot)
        while found.finish is None:
            (logits,) = passes(found.decoder, kv, [found.rows(CHUNK)])
            found.take(logits)
            ran += 1
        assert found.tokens == expected.tokens
    assert ran - 2 <= len(replays) <= ran, "all but the rests of the prompts"


def test_the_places_of_rows_begin_at_multiples_of_16_bytes(model: ChatModel, monkeypatch):
    layouts: list[PackedLayout] = []
    forward = model.decoder.forward_sampled

    def noting(hidden, layout, kv):
        layouts.append(layout)
        return forward(hidden, layout, kv)

    monkeypatch.setattr(model.decoder, "forward_sampled", noting)
    ReplayedPasses(model.decoder.kv_slots(1, CAPACITY), record).record(model.decoder, (1, 3, 4), 1)
    assert {layout.lengths for layout in layouts} == {(1,), (3,), (4,)}
    assert {place.data_ptr() % 16 for each in layouts for place in (each.row_slot, each.row_position)} == {0}


def test_a_reach_is_a_power_of_two_within_the_slot(model: ChatModel):
    kv = model.decoder.kv_slots(1, 1000)
    passes = ReplayedPasses(kv, record)
    passes.record(model.decoder, (1,), 1)
    assert len(passes) == 3, "256, 512 and all of 1000"


def test_a_model_that_cannot_be_recorded_runs_eagerly_unless_graphs_are_required(tmp_path):
    write_chat_checkpoint(tmp_path, "qwen2")
    plain = load_chat_model(tmp_path, torch.float32, CPU)
    kv = plain.decoder.kv_slots(1, CAPACITY)
    run, told = replayed(plain, plain, kv, CHUNK, required=False, record=record)
    assert run is run_pass and told.startswith("no graphs: packed_attention")
    with pytest.raises(ConfigError, match="graphs: packed_attention"):
        replayed(plain, plain, kv, CHUNK, required=True, record=record)
