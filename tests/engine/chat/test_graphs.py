"""A request whose passes are replayed gets the tokens of one whose passes are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat.build import BuiltChat, build_chat
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import GREEDY, SamplingKind
from edgeflow.engine.shapes import PassShape
from edgeflow.kernels.kv.formats import INT4
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.test_generate import CAPACITY, CPU, engine_of, prompt_of
from tests.engine.recorded_graphs import Replays, record

CHUNK = 4
ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", linear="gemm")
PARAMS = {
    "greedy": SamplingParams(max_tokens=6),
    "drawn": SamplingParams(max_tokens=6, temperature=1.2, seed=3),
    "cut": SamplingParams(max_tokens=6, temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=4),
    "penalised": SamplingParams(max_tokens=6, repetition_penalty=1.4, frequency_penalty=0.5),
    "logprobs": SamplingParams(max_tokens=6, logprobs=2),
}


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def model(request, tmp_path_factory) -> ChatModel:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp(request.param)
    write_chat_checkpoint(directory, request.param)
    return load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)


def replaying(model: ChatModel, slots: int = 1, record: Any = record, **options: Any) -> ChatEngine:
    """An engine whose passes are all recorded; its last slot is scratch."""
    engine = engine_of(model, slots + 1, **{"chunk": CHUNK, **options}, graphs=True, record=record)
    engine.record_all(lambda *_: None)
    engine.seal()
    return engine


def shapes_of(engine: ChatEngine) -> list[PassShape]:
    assert engine._prompts.graphs is not None
    return list(engine._prompts.graphs._by_shape)


def eager_passes(engine: ChatEngine) -> int:
    assert engine._prompts.graphs is not None
    return engine._prompts.graphs.eager_passes


def test_chunks_of_any_length_and_decode_rows_are_replayed_with_the_tokens_of_eager_ones(model: ChatModel):
    replays, ran = Replays(), 0
    engine = replaying(model, 2, replays)
    recommended = SamplingKind.of([SamplingParams.recommended(model.generation)])
    assert engine.recordings == len(shapes_of(engine)) == 2 + len({GREEDY, recommended, None})
    for slot, text in ((1, "abcdefg hgfedcba"), (0, "badcfe"), (1, "x")):
        prompt = prompt_of(model, text)
        plain = engine_of(model)
        expected = Generation(plain, prompt, PARAMS["greedy"], ignore_stop=True)
        list(generate(plain, expected, 1000))
        found = Generation(engine, prompt, PARAMS["greedy"], slot, ignore_stop=True)
        ran += len(list(generate(engine, found, CHUNK)))
        assert found.tokens == expected.tokens
    assert replays.count == ran and eager_passes(engine) == 0


def test_passes_over_four_bits_are_replayed_with_the_tokens_of_eager_ones(tmp_path: Path):
    """Chunks and decode rows that end groups, and that follow another request in the same slot."""
    write_chat_checkpoint(tmp_path, "qwen2")
    table = ON_THE_DEVICE.forcing(rope_write_kv="on_device")
    model, plain = (load_chat_model(tmp_path, torch.float32, CPU, table=each) for each in (table, None))
    replays, ran = Replays(), 0
    engine = replaying(model, 2, replays, kv_format=INT4)
    for slot, text in ((0, "abcdefgh" * 7 + "abcd"), (1, "badcfe"), (0, "hgfedcba" * 3 + "abcdef")):
        eager = engine_of(plain, kv_format=INT4)
        expected = Generation(eager, prompt_of(plain, text), PARAMS["greedy"], ignore_stop=True)
        list(generate(eager, expected, 1000))
        found = Generation(engine, prompt_of(model, text), PARAMS["greedy"], slot, ignore_stop=True)
        ran += len(list(generate(engine, found, CHUNK)))
        assert found.tokens == expected.tokens
    assert replays.count == ran and eager_passes(engine) == 0


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("chunk", [3, 21])
def test_any_kind_of_sampling_has_the_answer_of_passes_that_are_run(model: ChatModel, name: str, chunk: int):
    """What was not recorded is sampled apart; passes are replayed all the same."""
    replays = Replays()
    engine, plain = replaying(model, 1, replays, chunk=chunk), engine_of(model)
    recorded = engine.recordings
    for text in ("abcdefg hgfedcba", "abc"):
        found, expected = (
            Generation(each, prompt_of(model, text), PARAMS[name], ignore_stop=True) for each in (engine, plain)
        )
        told, wanted = list(generate(engine, found, chunk)), list(generate(plain, expected, chunk))
        assert found.tokens == expected.tokens and len(found.tokens) == 6
        assert [each is None for each in told] == [each is None for each in wanted]
        for one, other in zip(filter(None, told), filter(None, wanted), strict=True):
            assert len(one.logprobs) == len(other.logprobs) == (PARAMS[name].logprobs is not None)
            for own, theirs in zip(one.logprobs, other.logprobs, strict=True):
                assert own.logprob == pytest.approx(theirs.logprob, rel=1e-5)
                assert [token for token, _ in own.top] == [token for token, _ in theirs.top]
    assert eager_passes(engine) == 0 and engine.recordings == recorded and replays.count >= 12


def test_the_recommended_kind_is_recorded_whole(model: ChatModel, monkeypatch):
    engine = replaying(model)
    params = SamplingParams.recommended(model.generation, max_tokens=5)
    generation = Generation(engine, model.text_prompt("abc"), params, ignore_stop=True)
    apart: list[int] = []
    sample = engine._prompts.contract._program.sample
    monkeypatch.setattr(
        engine._prompts.contract._program, "sample", lambda *given: (apart.append(1), sample(*given))[1]
    )
    list(generate(engine, generation, CHUNK))
    assert len(generation.tokens) == 5 and apart == [1], "the end of the prompt"


def test_passes_beyond_all_classes_run_unpadded(model: ChatModel):
    """The padding of a chunk would lie after the end of the slot; a longer chunk has no class."""
    prompt = model.text_prompt("abcdefgh" * 10)
    assert len(prompt) == CAPACITY
    plain = engine_of(model)
    expected = Generation(plain, prompt, PARAMS["greedy"], ignore_stop=True)
    list(generate(plain, expected, 1000))
    for chunk, eager in ((21, 1), (16, 0), (40, 2)):
        engine = replaying(model, chunk=min(chunk, 21))
        found = Generation(engine, prompt, PARAMS["greedy"], ignore_stop=True)
        list(generate(engine, found, chunk))
        assert found.tokens == expected.tokens and len(found.tokens) == 1
        assert eager_passes(engine) == eager


def test_the_places_of_rows_begin_at_multiples_of_16_bytes(model: ChatModel, monkeypatch):
    layouts: list[PackedLayout] = []
    forward = model.decoder.forward_sampled

    def noting(hidden, layout, kv, taps):
        layouts.append(layout)
        return forward(hidden, layout, kv, taps)

    monkeypatch.setattr(model.decoder, "forward_sampled", noting)
    replaying(model, chunk=21)
    assert {layout.lengths for layout in layouts} == {(1,), (16,), (21,)}
    places = [place for each in layouts for place in (each.row_slot, each.row_position, each.rope_position)]
    places += [each.sampled_rows for each in layouts if len(each.sampled_rows)]
    assert {place.data_ptr() % 16 for place in places} == {0}


def test_a_reach_is_a_power_of_two_within_the_slot(model: ChatModel):
    engine = replaying(model, capacity=1000)
    assert {shape.reach for shape in shapes_of(engine) if shape.decodes} == {256, 512, 1000}
    assert {shape.reach for shape in shapes_of(engine) if shape.prefills} == {256, 512, 1000}


def build(model: ChatModel, graphs: str) -> BuiltChat:
    config = ChatConfig.model_validate({"alias": "small", "capacity": CAPACITY, "prefill_chunk": CHUNK})
    return build_chat(config, model, "f", lambda *_: None, graphs=graphs, record=record)


def test_recordings_are_reported_at_the_start(model: ChatModel):
    built = build(model, "on")
    assert built.ready().numbers.endswith(f", {len(shapes_of(replaying(model)))} graphs")
    assert built.engine.recordings == len(shapes_of(replaying(model))), "nothing else is recorded while it starts"
    slot = model.decoder.kv_slots(1, CAPACITY).nbytes
    assert (built.ready().slot_bytes, built.ready().kv_bytes) == (slot, 2 * slot), "one slot is scratch"


def test_a_model_that_cannot_be_recorded_runs_eagerly_unless_graphs_are_required(tmp_path):
    write_chat_checkpoint(tmp_path, "qwen2")
    plain = load_chat_model(tmp_path, torch.float32, CPU)
    built = build(plain, "auto")
    assert built.engine.recordings == 0 and "no graphs: packed_attention" in built.ready().numbers
    generation = Generation(built.engine, plain.text_prompt("abc"), PARAMS["greedy"], ignore_stop=True)
    list(generate(built.engine, generation, CHUNK))
    assert len(generation.tokens) == 6
    with pytest.raises(ConfigError, match="graphs: packed_attention"):
        build(plain, "on")
