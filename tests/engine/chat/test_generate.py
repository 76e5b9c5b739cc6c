"""Chat requests in steps: alone, in chunks, after a prefix, beside others, always the tokens of a whole forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.chat.engine import ChatEngine, PromptChunk, PromptSource
from edgeflow.engine.chat.generate import FixedPrefix, Generation, generate
from edgeflow.engine.sampling.params import MAX_LOGPROBS, SamplingParams
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import Pass, Segment
from edgeflow.scheduler.requests import Finish
from edgeflow_client.errors import InvalidArgument, WorkerError
from tests.chat_checkpoint import END, VOCAB, write_chat_checkpoint

CPU = torch.device("cpu")
CAPACITY = 80
GREEDY = SamplingParams(max_tokens=6)
TEXT = st.text("abcdefgh ", min_size=1, max_size=24)
IMAGE = np.random.default_rng(0).integers(0, 256, (90, 60, 3), np.uint8)


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def model(request, tmp_path_factory) -> ChatModel:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp(request.param)
    write_chat_checkpoint(directory, request.param)
    return load_chat_model(directory, torch.float32, CPU)


def prompt_of(model: ChatModel, text: str) -> Prompt:
    """With an image in the middle, for models that see."""
    if model.vision is None:
        return model.text_prompt(text)
    half = len(text) // 2
    return model.chat_prompt(f"{text[:half]}<|image_pad|>{text[half:]}", [IMAGE])


def poisoned(model: ChatModel, slots: int, capacity: int = CAPACITY, kv_format: KVFormat = DENSE) -> KVSlots:
    kv = model.decoder.kv_slots(slots, capacity, kv_format)
    for tensor in kv.tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0x7F)
    return kv


@torch.inference_mode()
def whole(model: ChatModel, prompt: Prompt, count: int) -> list[int]:
    """Greedy, without a cache: the text so far is computed anew for each token."""
    tokens: list[int] = []
    while len(tokens) < count:
        rows = torch.cat([model.prompt_rows(prompt), model.embed(tokens)]) if tokens else model.prompt_rows(prompt)
        after = torch.arange(len(prompt), len(rows)) + prompt.shift
        positions = torch.cat([prompt.positions, after.expand(len(prompt.positions), -1)], dim=1)
        layout = PackedLayout.of([Span(0, 0, len(rows))], CPU, positions)
        hidden = model.decoder.forward(rows, layout, model.decoder.kv_slots(1, len(rows)))
        tokens.append(int(model.decoder.logits(hidden[-1:], "decode")[0].argmax()))
    return tokens


def engine_of(
    model: ChatModel, slots: int = 1, capacity: int = CAPACITY, kv_format: KVFormat = DENSE, **options: Any
) -> ChatEngine:
    return ChatEngine(model, poisoned(model, slots, capacity, kv_format), **options)


def greedy(engine: ChatEngine, prompt: Prompt, slot: int = 0, known: int = 0, count: int = 6) -> Generation:
    params = SamplingParams(max_tokens=count)
    return Generation(engine, prompt, params, slot, known=known, ignore_stop=True)


@settings(max_examples=15)
@given(text=TEXT, chunk=st.integers(1, 50))
def test_chunks_of_any_size_give_the_tokens_of_a_whole_forward(model: ChatModel, text: str, chunk: int):
    prompt, engine = prompt_of(model, text), engine_of(model, 2)
    generation = greedy(engine, prompt, slot=1)
    passes = list(generate(engine, generation, chunk))
    assert generation.tokens == whole(model, prompt, 6) and generation.finish is Finish.LENGTH
    assert [each is None for each in passes] == [True] * (-(-len(prompt) // chunk) - 1) + [False] * 6


@settings(max_examples=15)
@given(texts=st.lists(TEXT, min_size=2, max_size=4), chunk=st.integers(1, 9), starts=st.lists(st.integers(0, 8)))
def test_requests_may_share_passes(model: ChatModel, texts: list[str], chunk: int, starts: list[int]):
    """Each starts at its own pass; slots lie in reverse order."""
    prompts = [prompt_of(model, text) for text in texts]
    engine = engine_of(model, len(prompts))
    requests = [greedy(engine, prompt, len(prompts) - 1 - slot) for slot, prompt in enumerate(prompts)]
    begin, number = dict(enumerate(starts)), 0
    while any(request.finish is None for request in requests):
        busy = [each for at, each in enumerate(requests) if each.finish is None and begin.get(at, at) <= number]
        if busy:
            run_pass(engine, busy, chunk)
        number += 1
    assert [request.tokens for request in requests] == [whole(model, prompt, 6) for prompt in prompts]


def test_beside_rows_of_another_user_of_the_decoder(model: ChatModel):
    """Rows of a robot's frames in the same passes: a prefill and decode rows whose logits are taken elsewhere."""
    prompt, engine = prompt_of(model, "a question"), engine_of(model, 5, keep_logits=True)
    request, source = greedy(engine, prompt, slot=2), PromptSource(model, prompt)
    frames = torch.randn(4, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    number = 0

    def frame(slot: int, length: int, stage: int = 0) -> Segment[int]:
        return Segment(sequence=slot, slot=slot, start=8 + stage - 1 if stage else 0, length=length, stage=stage)

    while request.finish is None:
        chunk = request.plan.next(3)
        assert chunk is not None
        slot = (0, 1, 3, 4)[number % 4] if number else 4
        others = [frame(slot, 8)] if slot != 4 or not number else []
        others += [frame(4, 1, stage=number)] if number else []
        segments = sorted([*others[:1], chunk, *others[1:]], key=lambda each: each.stage > 0)
        chunks = {slot: PromptChunk(frames[slot % 4, :8], torch.arange(8)[None]) for slot in (0, 1, 3, 4)}
        if chunk.stage == 0:
            chunks[2] = source.chunk(chunk)
        ticket = engine._prompts.launch(Pass(number, tuple(segments)), chunks)
        outcomes = {each.sequence: each for each in engine.collect(ticket)}
        assert ticket.logits is not None and len(ticket.logits) == sum(each.samples for each in segments)
        assert all(len(outcomes[each.sequence].tokens) == 1 for each in others)
        request.tokens += request.plan.commit(outcomes[2])
        number += 1
    assert request.tokens == whole(model, prompt, 6)


@settings(max_examples=15)
@given(shared=TEXT, own=st.lists(TEXT, min_size=1, max_size=3), chunk=st.integers(1, 30), cut=st.floats(0.1, 1))
def test_a_fixed_prefix_changes_no_token(model: ChatModel, shared: str, own: list[str], chunk: int, cut: float):
    """Computed once, lent to several requests: in its own slot, and copied to another."""
    base = prompt_of(model, shared)
    prefix = FixedPrefix(base.head(max(1, round(cut * len(base)))), slot=1)
    engine = engine_of(model, 3)
    assert list(prefix.compute(engine, chunk))[-1] == len(prefix.prompt)
    for text in own:
        images = [IMAGE] * len(base.images)
        prompt = model.prompt([*_unexpanded(base), *model.tokenizer.encode(text, special=False)], images)
        wanted = whole(model, prompt, 4)
        for slot in (1, 2):
            known = lend(prefix, engine, prompt, slot)
            assert known == len(prefix.prompt)
            first = greedy(engine, prompt, slot, known).plan.next(CAPACITY)
            assert first is not None
            assert (first.slot, first.start, first.length) == (slot, known, len(prompt) - known)
            generation = greedy(engine, prompt, slot, known, count=4)
            list(generate(engine, generation, chunk))
            assert generation.tokens == wanted


def _unexpanded(prompt: Prompt) -> list[int]:
    """Ids with one place an image."""
    inner = {row for image in prompt.images for row in range(image.start + 1, image.end)}
    return [token for row, token in enumerate(prompt.ids) if row not in inner]


def test_a_prompt_that_leaves_the_prefix_shares_what_it_can(model: ChatModel):
    prefix = FixedPrefix(model.text_prompt("shared and then"), slot=0)
    engine = engine_of(model, 2)
    list(prefix.compute(engine, 4))
    other = model.text_prompt("shared but not")
    with pytest.raises(ValueError, match="leaves the prefix"):
        lend(prefix, engine, other, 0)
    known = lend(prefix, engine, other, 1)
    assert known == len("shared ")
    generation = greedy(engine, other, 1, known)
    list(generate(engine, generation, 3))
    assert generation.tokens == whole(model, other, 6)
    same = model.text_prompt("shared and then")
    assert lend(prefix, engine, same, 0) == len(same) - 1, "one row is always computed: its logits give a token"


def test_sampled_answers_do_not_depend_on_how_passes_are_cut(model: ChatModel):
    params = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=11, logprobs=2)
    prompt = prompt_of(model, "what now")
    answers = []
    for chunk in (1, 4, 100):
        engine = engine_of(model)
        generation = Generation(engine, prompt, params, ignore_stop=True)
        sampled = [each for each in generate(engine, generation, chunk) if each is not None]
        assert all([len(token.top) for token in each.logprobs] == [MAX_LOGPROBS] for each in sampled)
        answers.append([token for each in sampled for token in each.tokens])
    assert answers[0] == answers[1] == answers[2] == generation.tokens


def test_a_request_without_a_seed_has_another_answer_each_time(model: ChatModel):
    params = SamplingParams(max_tokens=30, temperature=1.5)
    engine, answers = engine_of(model), []
    for _ in range(2):
        generation = Generation(engine, prompt_of(model, "what now"), params, ignore_stop=True)
        list(generate(engine, generation, 50))
        answers.append(generation.tokens)
    assert answers[0] != answers[1]


def test_an_answer_ends_with_its_stop_token_or_where_room_ends(model: ChatModel):
    prompt = model.text_prompt("abc")
    wanted = whole(model, prompt, 8)
    model.decoder.logits, kept = (
        (lambda *rows: kept(*rows).index_fill(1, torch.tensor([END]), 1e3)),
        model.decoder.logits,
    )
    try:
        engine = engine_of(model)
        generation = Generation(engine, prompt, GREEDY)
        list(generate(engine, generation, 9))
        assert (generation.tokens, generation.finish) == ([END], Finish.STOP)
    finally:
        model.decoder.logits = kept
    small = engine_of(model, capacity=7)
    full = Generation(small, prompt, SamplingParams(max_tokens=50), ignore_stop=True)
    list(generate(small, full, 2))
    assert (full.tokens, full.finish) == (wanted[:5], Finish.LENGTH), "the last token needs no row"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_reported(model: ChatModel, bad: float, temperature: float, monkeypatch):
    logits = model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda *rows: logits(*rows).index_fill(1, torch.tensor([9]), bad))
    engine = engine_of(model)
    generation = Generation(engine, model.text_prompt("abc"), SamplingParams(max_tokens=2, temperature=temperature))
    with pytest.raises(WorkerError, match="not finite"):
        list(generate(engine, generation, 9))


def test_a_prompt_that_does_not_fit_is_reported(model: ChatModel):
    prompt = model.text_prompt("x" * 9)
    with pytest.raises(InvalidArgument, match="9 tokens, at most 8") as caught:
        Generation(engine_of(model, capacity=8), prompt, GREEDY)
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    with pytest.raises(ValueError, match="at least one must be computed"):
        Generation(engine_of(model, capacity=20), prompt, GREEDY, known=9)
    assert model.config.vocab_size == VOCAB
