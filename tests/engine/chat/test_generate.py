"""Chat requests in steps: alone, in chunks, after a prefix, beside others, always the tokens of a whole forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.generate import Finish, FixedPrefix, Generation, StepRows, generate, run_pass
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.errors import InvalidArgument
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
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


def poisoned(model: ChatModel, slots: int, capacity: int = CAPACITY) -> KVSlots:
    kv = model.decoder.kv_slots(slots, capacity)
    kv.data.fill_(torch.nan)
    return kv


@torch.inference_mode()
def whole(model: ChatModel, prompt: Prompt, count: int) -> list[int]:
    """Greedy, without a cache: the text so far is computed anew for each token."""
    tokens: list[int] = []
    while len(tokens) < count:
        rows = torch.cat([model.embed_prompt(prompt), model.embed(tokens)]) if tokens else model.embed_prompt(prompt)
        after = torch.arange(len(prompt), len(rows)) + prompt.shift
        positions = torch.cat([prompt.positions, after.expand(len(prompt.positions), -1)], dim=1)
        layout = PackedLayout.of([Span(0, 0, len(rows))], CPU, positions)
        hidden = model.decoder.forward(rows, layout, model.decoder.kv_slots(1, len(rows)))
        tokens.append(int(model.decoder.logits(hidden[-1:], "decode")[0].argmax()))
    return tokens


def greedy(model: ChatModel, prompt: Prompt, slot: int = 0, known: int = 0, count: int = 6) -> Generation:
    params = SamplingParams(max_tokens=count)
    return Generation(model, prompt, params, slot, CAPACITY, known=known, ignore_stop=True)


@settings(max_examples=15)
@given(text=TEXT, chunk=st.integers(1, 50))
def test_chunks_of_any_size_give_the_tokens_of_a_whole_forward(model: ChatModel, text: str, chunk: int):
    prompt = prompt_of(model, text)
    generation = greedy(model, prompt, slot=1)
    passes = list(generate(model, poisoned(model, 2), generation, chunk))
    assert generation.tokens == whole(model, prompt, 6) and generation.finish is Finish.LENGTH
    assert [each is None for each in passes] == [True] * (-(-len(prompt) // chunk) - 1) + [False] * 6


@settings(max_examples=15)
@given(texts=st.lists(TEXT, min_size=2, max_size=4), chunk=st.integers(1, 9), starts=st.lists(st.integers(0, 8)))
def test_requests_may_share_passes(model: ChatModel, texts: list[str], chunk: int, starts: list[int]):
    """Each starts at its own pass; slots lie in reverse order."""
    prompts = [prompt_of(model, text) for text in texts]
    requests = [greedy(model, prompt, len(prompts) - 1 - slot) for slot, prompt in enumerate(prompts)]
    begin = dict(enumerate(starts))
    kv, number = poisoned(model, len(prompts)), 0
    while any(request.finish is None for request in requests):
        busy = [each for at, each in enumerate(requests) if each.finish is None and begin.get(at, at) <= number]
        if busy:
            for request, logits in zip(
                busy, run_pass(model.decoder, kv, [each.rows(chunk) for each in busy]), strict=True
            ):
                request.take(logits)
        number += 1
    assert [request.tokens for request in requests] == [whole(model, prompt, 6) for prompt in prompts]


def test_beside_rows_of_another_user_of_the_decoder(model: ChatModel):
    """Rows of a robot's frames in the same passes: a prefill and decode rows whose logits are taken elsewhere."""
    prompt = prompt_of(model, "a question")
    kv, request = poisoned(model, 5), greedy(model, prompt, slot=2)
    frames = torch.randn(4, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    number = 0

    def frame(slot: int, rows: torch.Tensor, start: int) -> StepRows:
        span = Span(slot, start, len(rows))
        return StepRows(span, rows, torch.arange(start, start + len(rows))[None], samples=True)

    while request.finish is None:
        slots = [slot for slot in (0, 1, 3, 4) if slot != 4 or number == 0]
        others = [frame(slot, frames[index % 4, :8], 0) for index, slot in enumerate(slots) if slot == number % 4]
        others += [frame(4, frames[0, 8:], 8)] if number else [frame(4, frames[0, :8], 0)]
        found = run_pass(model.decoder, kv, [others[0], request.rows(3), *others[1:]])
        assert all(logits is not None for logits in (found[0], *found[2:]))
        request.take(found[1])
        number += 1
    assert request.tokens == whole(model, prompt, 6)


@settings(max_examples=15)
@given(shared=TEXT, own=st.lists(TEXT, min_size=1, max_size=3), chunk=st.integers(1, 30), cut=st.floats(0.1, 1))
def test_a_fixed_prefix_changes_no_token(model: ChatModel, shared: str, own: list[str], chunk: int, cut: float):
    """Computed once, lent to several requests: in its own slot, and copied to another."""
    base = prompt_of(model, shared)
    prefix = FixedPrefix(base.head(max(1, round(cut * len(base)))), slot=1)
    kv = poisoned(model, 3)
    assert list(prefix.compute(model, kv, chunk))[-1] == len(prefix.prompt)
    for text in own:
        images = [IMAGE] * len(base.images)
        prompt = model.prompt([*_unexpanded(base), *model.tokenizer.encode(text, special=False)], images)
        wanted = whole(model, prompt, 4)
        for slot in (1, 2):
            known = prefix.lend(kv, prompt, slot)
            assert known == len(prefix.prompt)
            assert greedy(model, prompt, slot, known).rows(CAPACITY).span == Span(slot, known, len(prompt) - known)
            generation = greedy(model, prompt, slot, known, count=4)
            list(generate(model, kv, generation, chunk))
            assert generation.tokens == wanted


def _unexpanded(prompt: Prompt) -> list[int]:
    """Ids with one place an image."""
    inner = {row for image in prompt.images for row in range(image.start + 1, image.end)}
    return [token for row, token in enumerate(prompt.ids) if row not in inner]


def test_a_prompt_that_leaves_the_prefix_shares_what_it_can(model: ChatModel):
    prefix = FixedPrefix(model.text_prompt("shared and then"), slot=0)
    kv = poisoned(model, 2)
    list(prefix.compute(model, kv, 4))
    other = model.text_prompt("shared but not")
    with pytest.raises(ValueError, match="leaves the prefix"):
        prefix.lend(kv, other, 0)
    known = prefix.lend(kv, other, 1)
    assert known == len("shared ")
    generation = greedy(model, other, 1, known)
    list(generate(model, kv, generation, 3))
    assert generation.tokens == whole(model, other, 6)
    same = model.text_prompt("shared and then")
    assert prefix.lend(kv, same, 0) == len(same) - 1, "one row is always computed: its logits are the first token's"


def test_sampled_answers_do_not_depend_on_how_passes_are_cut(model: ChatModel):
    params = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=11, logprobs=2)
    prompt = prompt_of(model, "what now")
    answers = []
    for chunk in (1, 4, 100):
        generation = Generation(model, prompt, params, 0, CAPACITY, ignore_stop=True)
        sampled = [each for each in generate(model, poisoned(model, 1), generation, chunk) if each is not None]
        assert all(len(each.top) == 2 and each.logprob is not None for each in sampled)
        answers.append([each.token for each in sampled])
    assert answers[0] == answers[1] == answers[2] == generation.tokens


def test_an_answer_ends_with_its_stop_token_or_where_room_ends(model: ChatModel):
    prompt = model.text_prompt("abc")
    wanted = whole(model, prompt, 8)
    model.decoder.logits, kept = (
        (lambda *rows: kept(*rows).index_fill(1, torch.tensor([END]), 1e3)),
        model.decoder.logits,
    )
    try:
        generation = Generation(model, prompt, GREEDY, 0, CAPACITY)
        list(generate(model, poisoned(model, 1), generation, 9))
        assert (generation.tokens, generation.finish) == ([END], Finish.STOP)
    finally:
        model.decoder.logits = kept
    full = Generation(model, prompt, SamplingParams(max_tokens=50), 0, 7, ignore_stop=True)
    list(generate(model, poisoned(model, 1, 7), full, 2))
    assert (full.tokens, full.finish) == (wanted[:5], Finish.LENGTH), "the last token needs no row"
    early = Generation(model, prompt, GREEDY, 0, CAPACITY, ignore_stop=True)
    for sampled in generate(model, poisoned(model, 1), early, 9):
        if sampled is not None and len(early.tokens) == 2:
            early.stop()
    assert (early.tokens, early.finish) == (wanted[:2], Finish.STOP)


def test_a_prompt_that_does_not_fit_is_told(model: ChatModel):
    prompt = model.text_prompt("x" * 9)
    with pytest.raises(InvalidArgument, match="9 tokens, at most 8") as caught:
        Generation(model, prompt, GREEDY, 0, 8)
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    with pytest.raises(ValueError, match="at least one must be computed"):
        Generation(model, prompt, GREEDY, 0, 20, known=9)
    assert model.config.vocab_size == VOCAB
