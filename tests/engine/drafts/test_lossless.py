"""Greedy answers with drafts are those without, whoever drafts and whatever is accepted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from edgeflow.engine.chat.generate import FixedPrefix, Generation, generate
from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import DraftForm
from tests.engine.drafts.drafters import (
    CAPACITY,
    Knowing,
    answer,
    eagle,
    eagle_head,
    engine_of,
    knowing_kinds,
    taught,
)
from tests.engine.drafts.varied_models import varied_model

TEXTS = ["a b a b a b a", "what now?", "x"]
IMAGE = np.random.default_rng(0).integers(0, 256, (90, 60, 3), np.uint8)


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def head(model: ChatModel, tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    return eagle_head(tmp_path_factory.mktemp("head"), model)


def prompt_of(model: ChatModel, text: str) -> Prompt:
    """With an image in the middle, for models that see."""
    if model.vision is None:
        return model.text_prompt(text)
    half = len(text) // 2
    return model.chat_prompt(f"{text[:half]}<|image_pad|>{text[half:]}", [IMAGE])


def undrafted(model: ChatModel, prompt: Prompt, count: int, capacity: int = CAPACITY) -> list[int]:
    return answer(engine_of(model, capacity=capacity), prompt, SamplingParams(max_tokens=count)).tokens


def kinds_of(head: Eagle3Head) -> list[DraftKind]:
    trees = TreeSizes(rows=5, depth=2, width=2)
    return [
        Lookup(),
        Lookup(drafts=3, shortest=2, longest=2),
        eagle(head),
        eagle(head, tree=False),
        Eagle(head=head, tree=trees, depth=6),
    ]


def test_answers_of_every_kind(model: ChatModel, head: Eagle3Head):
    """Requests one after the other in one slot, in chunks of many sizes."""
    for kind in kinds_of(head):
        engine = engine_of(model, kind)
        for text, chunk, count in zip([*TEXTS, *TEXTS], (1, 7, 50, 5, 2, 9), (20, 30, 30, 1, 2, 13), strict=True):
            prompt = prompt_of(model, text)
            found = answer(engine, prompt, SamplingParams(max_tokens=count), chunk)
            assert found.tokens == undrafted(model, prompt, count), (kind.name, text, chunk)
            assert found.plan.passes == 0 and found.plan.verified == count


def test_a_drafter_that_is_always_right(model: ChatModel):
    """Trees and chains of all shapes, of which much is accepted."""
    texts = {text: prompt_of(model, text) for text in ("hello", "x")}
    wanted = {text: undrafted(model, prompt, 40) for text, prompt in texts.items()}
    choose, accepted, passes = random.Random(1), 0, 0
    for kind in knowing_kinds(10):
        engine = engine_of(model, kind)
        for text, prompt in texts.items():
            count = choose.choice([3, 17, 40])
            found = answer(engine, prompt, SamplingParams(max_tokens=count), choose.choice([1, 4, 8, 64, 64]))
            taught(kind, prompt, wanted[text])
            found = answer(engine, prompt, SamplingParams(max_tokens=count), choose.choice([4, 8, 64, 64]))
            assert found.tokens == wanted[text][:count], (kind, text)
            accepted += found.plan.drafts.counts.accepted
            passes += found.plan.drafts.counts.drafts
    assert accepted > 1.5 * passes, "that the test tests something"


def test_all_drafts_right_take_as_few_passes_as_can_be(model: ChatModel):
    prompt = prompt_of(model, TEXTS[0])
    wanted = undrafted(model, prompt, 33)
    kind = taught(Knowing(form=DraftForm.CHAIN, rows=8, sure=1.0, fixed=True), prompt, wanted)
    engine = engine_of(model, kind)
    generation = Generation(engine, prompt, SamplingParams(max_tokens=33), ignore_stop=True)
    sampled = [each for each in generate(engine, generation, 100) if each is not None]
    assert [len(each.tokens) for each in sampled] == [1, 8, 8, 8, 8]
    counts = generation.plan.drafts.counts
    assert (counts.drafted, counts.accepted, counts.drafts, counts.plain) == (28, 28, 4, 0)


def test_a_fixed_prefix_in_its_slot_and_copied(model: ChatModel, head: Eagle3Head):
    """The prefix's slot is used again and again; its rows stay as they are."""
    base = prompt_of(model, "shared words and then")
    kinds = [Lookup(), eagle(head), eagle(head, tree=False), Knowing()]
    for kind in kinds:
        engine = engine_of(model, kind, slots=3, capacity=96)
        prefix = FixedPrefix(base, slot=1)
        assert list(prefix.compute(engine, 8))[-1] == len(base)
        for text, slot in ((" this", 1), (" that and this", 2), (" words", 1), (" this", 2)):
            prompt = prompt_of(model, "shared words and then")
            prompt = model.prompt(
                [*_unexpanded(prompt), *model.tokenizer.encode(text, special=False)], [IMAGE] * len(prompt.images)
            )
            wanted = undrafted(model, prompt, 12, 96)
            if isinstance(kind, Knowing):
                taught(kind, prompt, wanted, slot)
            known = lend(prefix, engine, prompt, slot)
            assert known == len(base) - (1 if isinstance(kind, Eagle) else 0)
            params = SamplingParams(max_tokens=12)
            generation = Generation(engine, prompt, params, slot, known=known, prefix=len(base), ignore_stop=True)
            list(generate(engine, generation, 5))
            assert generation.tokens == wanted, (kind.name, text, slot)


def _unexpanded(prompt: Prompt) -> list[int]:
    """Ids with one place an image."""
    inner = {row for image in prompt.images for row in range(image.start + 1, image.end)}
    return [token for row, token in enumerate(prompt.ids) if row not in inner]


def test_a_slot_that_is_filled_to_its_end(model: ChatModel, head: Eagle3Head):
    """Prompt and answer take all places, and the last token none; drafts never leave the slot."""
    prompt = prompt_of(model, TEXTS[0])
    capacity = len(prompt) + 14
    wanted = undrafted(model, prompt, 100, capacity)
    assert len(wanted) == 15
    kinds: list[DraftKind] = [*kinds_of(head), Knowing(rows=20, sure=0.9), Knowing(form=DraftForm.CHAIN, sure=1.0)]
    for kind in kinds:
        if isinstance(kind, Knowing):
            taught(kind, prompt, wanted)
        engine = engine_of(model, kind, capacity=capacity)
        for _ in range(2):
            assert answer(engine, prompt, SamplingParams(max_tokens=100)).tokens == wanted, kind.name


def test_a_prompt_that_fills_its_slot(model: ChatModel, head: Eagle3Head):
    prompt = prompt_of(model, TEXTS[0])
    wanted = undrafted(model, prompt, 9, len(prompt))
    assert len(wanted) == 1
    for kind in kinds_of(head):
        assert (
            answer(engine_of(model, kind, capacity=len(prompt)), prompt, SamplingParams(max_tokens=9)).tokens == wanted
        )


@pytest.mark.parametrize("form", [DraftForm.CHAIN, DraftForm.TREE])
def test_a_stop_token_in_the_middle_of_an_accepted_run(model: ChatModel, form: DraftForm, monkeypatch):
    prompt = prompt_of(model, TEXTS[1])
    wanted = undrafted(model, prompt, 30)
    stop = next(token for at, token in enumerate(wanted) if at >= 6 and token not in wanted[:at])
    monkeypatch.setattr(type(model), "stop_ids", property(lambda _: frozenset({stop})))
    kind = taught(Knowing(form=form, rows=12, sure=1.0, fixed=True), prompt, wanted)
    engine = engine_of(model, kind)
    for _ in range(2):  # what stood after the stop token has no part in the next answer
        generation = Generation(engine, prompt, SamplingParams(max_tokens=30))
        told = [token for each in generate(engine, generation, 50) if each is not None for token in each.tokens]
        assert generation.tokens == told == wanted[: wanted.index(stop) + 1]
        assert generation.finish is not None and generation.finish.value == "stop"


def test_the_rows_of_a_pass_may_be_few(model: ChatModel):
    """A gap beside a robot may be too short for all drafts; the next pass goes on with others."""
    prompt = prompt_of(model, TEXTS[0])
    wanted = undrafted(model, prompt, 40)
    for form in (DraftForm.CHAIN, DraftForm.TREE):
        kind = taught(Knowing(form=form, rows=16, sure=0.9, fixed=True), prompt, wanted)
        engine = engine_of(model, kind)
        for chunk in (1, 2, 3, 5):
            found = answer(engine, prompt, SamplingParams(max_tokens=40), chunk)
            assert found.tokens == wanted
            counts = found.plan.drafts.counts
            assert counts.drafted <= (chunk - 1) * counts.drafts
            assert (counts.drafts == 0) == (chunk == 1)
            assert counts.accepted + counts.drafts + counts.plain >= 39


def test_weights_of_another_model_decode_what_the_first_has_read(model: ChatModel, head: Eagle3Head, tmp_path: Path):
    """Prompts by one model, answers by another: the drafts are those of the second one's answers."""
    decode = varied_model(tmp_path, model.name, intermediate_size=64)
    prompt, params = prompt_of(model, TEXTS[0]), SamplingParams(max_tokens=20)
    wanted = answer(engine_of(model, decode=decode), prompt, params).tokens
    assert wanted != undrafted(model, prompt, 20)
    for kind in (Lookup(), eagle(head), eagle(head, tree=False), taught(Knowing(), prompt, wanted)):
        assert answer(engine_of(model, kind, decode=decode), prompt, params).tokens == wanted


def test_trees_of_several_slots_in_one_pass(model: ChatModel):
    """Requests of one length in slots in reverse order. They may go on where their answers are compared no more."""
    texts = ["hello", "other", "words"]
    prompts = [prompt_of(model, text) for text in texts]
    wanted = [undrafted(model, prompt, 25) for prompt in prompts]
    assert len({len(prompt) for prompt in prompts}) == 1
    for form, sure in ((DraftForm.TREE, 0.9), (DraftForm.TREE, 0.6)):
        kind = Knowing(form=form, rows=9, sure=sure, fixed=True)
        engine = engine_of(model, kind, slots=3)
        asked = []
        for index, prompt in enumerate(prompts):
            taught(kind, prompt, wanted[index], 2 - index)
            asked.append(Generation(engine, prompt, SamplingParams(max_tokens=60), 2 - index, ignore_stop=True))
        while min(len(each.tokens) for each in asked) < 25:
            run_pass(engine, [each for each in asked if len(each.tokens) < 25], 50)
        assert [each.tokens[:25] for each in asked] == wanted


def test_sequences_with_drafts_that_cannot_share_a_pass_are_reported(model: ChatModel):
    engine = engine_of(model, Lookup(), slots=2)
    params = SamplingParams(max_tokens=9)
    short, long = (
        Generation(engine, prompt_of(model, text), params, slot, ignore_stop=True)
        for slot, text in enumerate(("ab ab", "ab ab ab ab ab ab"))
    )
    with pytest.raises(ValueError, match=r"share a pass where all sample alike: \(1, 0\) of"):
        run_pass(engine, [short, long], len(short.source.prompt))
