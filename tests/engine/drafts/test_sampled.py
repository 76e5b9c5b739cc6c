"""Drawn answers with drafts: the tokens of those without, and so their distribution."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.kinds import Lookup
from edgeflow.engine.sampling.params import MAX_LOGPROBS, SamplingParams
from edgeflow.engine.sampling.sample import TokenLogprobs
from edgeflow.lab.shared_passes import run_pass
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import DraftForm
from tests.chat_checkpoint import VOCAB
from tests.engine.drafts.drafters import Knowing, answer, eagle, eagle_head, engine_of, knowing_kinds, taught
from tests.engine.drafts.varied_models import varied_model

COUNT = 30
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 3},
    "all": {"temperature": 1.0, "seed": 3},
    "cut": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 4, "logprobs": 0},
    "repetition": {"repetition_penalty": 1.8, "logprobs": 5},
    "counted": {"presence_penalty": 0.7, "frequency_penalty": 0.6},
    "both": {"temperature": 0.9, "seed": 6, "repetition_penalty": 1.3, "frequency_penalty": -0.4, "logprobs": 1},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("model"), "qwen2")


def told(engine: ChatEngine, prompt: Prompt, params: SamplingParams) -> tuple[Generation, list[TokenLogprobs]]:
    """An answer and the log probabilities of its tokens."""
    generation, logprobs = Generation(engine, prompt, params, ignore_stop=True), []
    for sampled in generate(engine, generation, 50):
        if sampled is not None:
            assert len(sampled.logprobs) == (0 if params.logprobs is None else len(sampled.tokens))
            logprobs += sampled.logprobs
    return generation, logprobs


def same(found: list[TokenLogprobs], wanted: list[TokenLogprobs]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert len(ours.top) == MAX_LOGPROBS
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)


@pytest.mark.parametrize("name", RULES)
def test_tokens_and_log_probabilities_are_those_without_drafts(model: ChatModel, name: str, tmp_path):
    """Request after request in one slot, so that what one has counted does not count for the next."""
    params = SamplingParams(max_tokens=COUNT, **RULES[name])
    wanted = {text: told(engine_of(model), model.text_prompt(text), params) for text in ("hello", "ab ab ab")}
    head, accepted, rejected = eagle_head(tmp_path, model), 0, 0
    for kind in (Lookup(), Lookup(drafts=3), eagle(head), eagle(head, tree=False), *knowing_kinds(6, seed=5)):
        engine = engine_of(model, kind)
        for text, (plain, logprobs) in wanted.items():
            prompt = model.text_prompt(text)
            if isinstance(kind, Knowing):
                taught(kind, prompt, plain.tokens)
            generation, found = told(engine, prompt, params)
            assert generation.tokens == plain.tokens, (kind, text)
            same(found, logprobs)
            counts = generation.plan.drafts.counts
            accepted, rejected = accepted + counts.accepted, rejected + counts.drafted - counts.accepted
    assert accepted > 2 * COUNT and rejected > 2 * COUNT, "that the test tests something"


@pytest.mark.parametrize("form", [DraftForm.CHAIN, DraftForm.TREE])
def test_penalties_count_the_drafts_before_a_row(model: ChatModel, form: DraftForm):
    """A token whose draft is right twice in one verification is counted twice; of a wrong path none is."""
    params = SamplingParams(max_tokens=24, frequency_penalty=0.35, presence_penalty=-0.5)
    prompt = model.text_prompt("x")
    plain = answer(engine_of(model), prompt, params).tokens
    assert max(Counter(plain).values()) > 2, "tokens that are said again"
    for seed in range(6):
        kind = Knowing(form=form, rows=24, sure=1.0 if seed < 2 else 0.85, seed=seed, fixed=True)
        assert answer(engine_of(model, taught(kind, prompt, plain)), prompt, params).tokens == plain


@torch.inference_mode()
def test_the_distribution_of_answers_is_the_model_s(model: ChatModel):
    """Of two tokens, over many seeds, by chi-squared: with drafts that are right at times and never know the seed."""
    prompt, seeds = model.text_prompt("what now?"), 240
    params = SamplingParams(max_tokens=3, temperature=1.0, top_k=3)
    engine = engine_of(model, keep_logits=True)

    def kept(tokens: list[int]) -> dict[int, float]:
        """Tokens that may come, and how likely they are."""
        (ticket_logits,) = _logits(engine, model.prompt([*prompt.ids, *tokens]))
        best = ticket_logits.topk(3)
        return dict(zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True))

    expected = {(first, second): p * q for first, p in kept([]).items() for second, q in kept([first]).items()}
    likely = max(expected, key=lambda each: expected[each])
    assert len(expected) == 9 and expected[likely] < 0.8
    for form in (DraftForm.CHAIN, DraftForm.TREE):
        kind = taught(Knowing(form=form, rows=5, sure=0.9, fixed=True), prompt, [*likely, 0])
        drafted = engine_of(model, kind)
        found: Counter[tuple[int, ...]] = Counter()
        accepted = 0
        for seed in range(seeds):
            generation = answer(drafted, prompt, replace(params, seed=seed))
            found[tuple(generation.tokens[:2])] += 1
            accepted += generation.plan.drafts.counts.accepted
        assert set(found) <= set(expected)
        squares = sum((found[key] - seeds * p) ** 2 / (seeds * p) for key, p in expected.items())
        assert squares < 40, "8 degrees of freedom: by chance once in 300,000"
        assert accepted > 0.05 * seeds


def _logits(engine: ChatEngine, prompt: Prompt) -> torch.Tensor:
    generation = Generation(engine, prompt, SamplingParams(max_tokens=1), ignore_stop=True)
    (step,) = run_pass(engine, [generation], 100)
    assert step.logits is not None and step.logits.shape == (1, VOCAB)
    return step.logits
