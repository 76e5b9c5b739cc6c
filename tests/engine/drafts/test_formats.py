"""Answers with drafts over every format of keys and values, and over quantised weights, are as good as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeflow.engine.drafts.kinds import DraftKind, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import FP8, INT4, INT8, KVFormat
from edgeflow.lab.verify.comparison import NEAR_TIES
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.scheduler.plan import DraftForm
from edgeflow_client.errors import WorkerError
from tests.chat_checkpoint import YARN
from tests.engine.drafts.drafters import CPU, Knowing, answer, eagle, eagle_head, engine_of, taught
from tests.engine.drafts.near_ties import NEAR_OF_ROUNDED_ROWS, agreed, behind
from tests.engine.drafts.varied_models import varied_model, write_talkative
from tests.quantised import quantised_copies

COUNT = 40
PARAMS = SamplingParams(max_tokens=COUNT)
TEXTS = ("hello", "the cup is red")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("latent"), "deepseek_v3", q_lora_rank=24, rope_parameters=YARN)


def forms(form: DraftForm) -> list[Knowing]:
    return [Knowing(form=form, rows=rows, sure=0.9, seed=rows, fixed=fixed) for rows, fixed in ((9, True), (30, False))]


def check(model: ChatModel, kinds: list[DraftKind], near: float, kv_format: KVFormat | None = None) -> None:
    """The answers of each kind, one after the other in one slot, in chunks of several sizes.

    near: how far from the best a token may be (near_best.py); 0 where nothing is rounded, so that tokens are the same.
    """
    prompts = [model.text_prompt(text) for text in TEXTS]
    wanted = [answer(engine_of(model, kv_format=kv_format), prompt, PARAMS).tokens for prompt in prompts]
    assert len(set(wanted[0])) > COUNT / 4
    for kind in kinds:
        engine, accepted, same = engine_of(model, kind, kv_format=kv_format), 0, 0
        for prompt, tokens, chunk in zip(prompts, wanted, (64, 7), strict=True):
            if isinstance(kind, Knowing):
                taught(kind, prompt, tokens)
            found = answer(engine, prompt, PARAMS, chunk)
            assert len(found.tokens) == COUNT
            if near:
                assert behind(model, prompt, found.tokens, kv_format) < near, (kind, chunk)
            else:
                assert found.tokens == tokens, (kind, chunk)
            accepted += found.plan.drafts.counts.accepted
            same += agreed(found.tokens, tokens)
        assert accepted > same / 4 or not isinstance(kind, Knowing)


@pytest.mark.parametrize("kv_format", [INT8, FP8], ids=lambda each: each.name)
def test_eight_bits(model: ChatModel, kv_format: KVFormat, tmp_path: Path):
    """Places move with their scales."""
    check(
        model,
        [*forms(DraftForm.TREE), *forms(DraftForm.CHAIN), Lookup(), eagle(eagle_head(tmp_path, model))],
        NEAR_TIES[kv_format.name],
        kv_format,
    )


def test_four_bits(model: ChatModel, tmp_path: Path):
    """Chains across the boundaries of groups; trees would move single places."""
    head = eagle_head(tmp_path, model)
    check(model, [*forms(DraftForm.CHAIN), Lookup(), eagle(head, tree=False)], NEAR_TIES[INT4.name], INT4)
    for tree in (Knowing(), eagle(head)):
        with pytest.raises(ValueError, match="int4 KV moves several places at a time: draft chains, not trees"):
            engine_of(model, tree, kv_format=INT4)
    with pytest.raises(ValueError, match="int4 KV verifies at most 32 rows at a time, not 33: make fewer drafts"):
        engine_of(model, Lookup(drafts=32), kv_format=INT4)
    check(model, [Knowing(form=DraftForm.CHAIN, rows=32, sure=0.9, fixed=True)], NEAR_TIES[INT4.name], INT4)


def test_latent_rows(latent: ChatModel, tmp_path: Path):
    head = eagle_head(tmp_path, latent)
    kinds = [*forms(DraftForm.TREE), *forms(DraftForm.CHAIN), Lookup(), eagle(head), eagle(head, tree=False)]
    check(latent, kinds, near=0)


def test_weights_of_four_bits(tmp_path: Path):
    write_talkative(tmp_path / "source", "qwen2", hidden_size=64, intermediate_size=96, num_attention_heads=4)
    four, _ = quantised_copies(tmp_path / "source", tmp_path, "model.", [])
    model = load_chat_model(four, torch.float32, CPU)
    kinds = [*forms(DraftForm.TREE), Lookup(), eagle(eagle_head(tmp_path / "head", model))]
    check(model, kinds, NEAR_OF_ROUNDED_ROWS)


def test_bfloat16(tmp_path: Path):
    """Rounding differs between a row by itself and several: an answer is near the best one at every step."""
    write_talkative(tmp_path / "base", "qwen2")
    model, exact = (load_chat_model(tmp_path / "base", dtype, CPU) for dtype in (torch.bfloat16, torch.float32))
    prompt = model.text_prompt("hello")
    plain = answer(engine_of(model), prompt, PARAMS).tokens
    for kind in (*forms(DraftForm.TREE), Lookup(), eagle(eagle_head(tmp_path / "head", model))):
        if isinstance(kind, Knowing):
            taught(kind, prompt, plain)
        found = answer(engine_of(model, kind), prompt, PARAMS).tokens
        assert len(found) == COUNT
        assert behind(exact, prompt, found) < 0.15, "no token is further from the best than bfloat16 takes it"


@pytest.mark.parametrize("form", [DraftForm.CHAIN, DraftForm.TREE])
def test_logits_that_are_not_finite_are_reported_in_a_verification(model: ChatModel, form: DraftForm, monkeypatch):
    """On the accepted path it ends the request, elsewhere it changes nothing; the next request is answered."""
    prompt = model.text_prompt("hello")
    wanted = answer(engine_of(model), prompt, PARAMS).tokens
    logits = model.decoder.logits
    for row in (0, 2, 5):
        kind = taught(Knowing(form=form, rows=6, sure=0.8, seed=row, fixed=True), prompt, wanted)
        engine, passes = engine_of(model, kind), []

        def broken(hidden: torch.Tensor, stage: str, row: int = row, passes: list[int] = passes) -> torch.Tensor:
            found = logits(hidden, stage)
            passes.append(len(found))
            if len(passes) == 3 and len(found) > row:
                found[row] = torch.nan
            return found

        monkeypatch.setattr(model.decoder, "logits", broken)
        try:
            found = answer(engine, prompt, PARAMS).tokens
            assert row > 0 and found == wanted, "of a row that is not accepted"
        except WorkerError as error:
            assert "not finite" in str(error)
        assert len(passes) >= 3 and passes[2] == 6
        monkeypatch.setattr(model.decoder, "logits", logits)
        assert answer(engine, prompt, PARAMS).tokens == wanted
