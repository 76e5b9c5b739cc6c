"""Answers with drafts in slots with memory: no draft crosses a fold, and all choices of a gate give the same tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.drafts.kinds import DraftKind, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.shared_passes import lend
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.memory_gate import GateRules
from edgeflow.scheduler.plan import Before, DraftForm
from tests.cases import by_night
from tests.engine.drafts.drafters import Knowing, answer, eagle, eagle_head, taught
from tests.engine.drafts.varied_models import varied_model
from tests.random_gates import random_gate

LONGEST = 160
SMALL = GateRules(sink=3, window=6, segment=8)
CHANGES = [
    {},
    by_night({"fold": "cached"}),
    by_night({"first_segment": "zero"}),
    {"positions": "local", "memory_content": "sink_and_segment"},
    {"fold": "cached", "first_segment": "zero"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def head(model: ChatModel, tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    return eagle_head(tmp_path_factory.mktemp("head"), model)


def engine_of(model: ChatModel, rules: GateRules, drafts: DraftKind | None = None, slots: int = 1) -> ChatEngine:
    """Slots with just the places that are needed, which hold NaN."""
    kv = model.decoder.kv_slots(slots, rules.threshold, memory_format(random_gate(model.config, rules), LONGEST))
    kv.data.fill_(torch.nan)
    engine = ChatEngine(model, kv, folding=folding_of(rules), drafts=drafts)
    engine.row_permille = 0  # all drafts are verified
    return engine


def ids_of(count: int) -> list[int]:
    return torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def asked(engine: ChatEngine, ids: list[int], chunk: int = 50, count: int = 50, **options: int) -> Generation:
    prompt = engine.model.prompt(ids)
    generation = Generation(engine, prompt, SamplingParams(max_tokens=count), ignore_stop=True, **options)
    for _ in generate(engine, generation, chunk):
        pass
    return generation


@pytest.mark.parametrize("changes", CHANGES, ids=lambda each: " ".join(each.values()))
def test_tokens_are_those_without_drafts(model: ChatModel, head: Eagle3Head, changes: dict[str, str]):
    """Short prompts that grow long, and long ones; several folds while decoding."""
    rules, choose, accepted = replace(SMALL, **changes), random.Random(1), 0
    plain = {rows: asked(engine_of(model, rules), ids_of(rows)) for rows in (5, rules.threshold - 1, 40)}
    knowing = [Knowing(form=form, rows=9, sure=0.9, seed=seed) for seed, form in enumerate(DraftForm) if seed]
    for kind in (*knowing, Lookup(), eagle(head), eagle(head, tree=False)):
        engine = engine_of(model, rules, kind)
        for rows, wanted in plain.items():
            if isinstance(kind, Knowing):
                taught(kind, engine.model.prompt(ids_of(rows)), wanted.tokens)
            found = asked(engine, ids_of(rows), choose.choice([3, 8, 50]))
            assert found.tokens == wanted.tokens, (kind, rows)
            assert found.plan.folds == wanted.plan.folds == rules.segments(rows + 49) > 2
            accepted += found.plan.drafts.counts.accepted
    assert accepted > 150


def test_the_longest_sequence(model: ChatModel, head: Eagle3Head):
    """Rows of drafts after its end are rotated by no position that does not exist."""
    wanted = asked(engine_of(model, SMALL), ids_of(LONGEST - 20), count=100).tokens
    assert len(wanted) == 21
    kinds = [Knowing(rows=12, sure=0.95), Knowing(form=DraftForm.CHAIN, rows=8, sure=0.95), Lookup(), eagle(head)]
    for kind in kinds:
        engine = engine_of(model, SMALL, kind)
        if isinstance(kind, Knowing):
            taught(kind, model.prompt(ids_of(LONGEST - 20)), wanted)
        assert asked(engine, ids_of(LONGEST - 20), count=100).tokens == wanted


def test_a_draw_depends_on_the_position_not_on_the_place(model: ChatModel, head: Eagle3Head):
    """Penalties count what is folded too."""
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=7, frequency_penalty=0.3)
    prompt = model.prompt(ids_of(20))
    wanted = answer(engine_of(model, SMALL), prompt, params).tokens
    for kind in (Lookup(), eagle(head), taught(Knowing(rows=9, sure=0.95), prompt, wanted)):
        assert answer(engine_of(model, SMALL, kind), prompt, params).tokens == wanted


def test_the_pairs_of_a_head_move_up_with_those_of_its_base(model: ChatModel, head: Eagle3Head):
    """At a fold that keeps pairs."""
    engine = engine_of(model, replace(SMALL, fold="cached"), eagle(head), slots=2)
    asked(engine, ids_of(SMALL.threshold - 4), count=3)
    store, memory = engine._verifier.store, engine._prompts.contract._memory
    before, sink, stop = store.data.clone(), SMALL.sink, SMALL.sink + SMALL.segment
    memory.change(0, Before.FOLD_KEEPING)
    assert torch.equal(store.data[:, :, 0, :sink], before[:, :, 0, :sink])
    assert torch.equal(store.data[:, :, 0, sink : -SMALL.segment], before[:, :, 0, stop:])
    assert torch.equal(store.data[:, :, 1], before[:, :, 1])


@pytest.mark.parametrize("prefix", [2, 12, 30])
def test_a_prefix_is_lent(model: ChatModel, head: Eagle3Head, prefix: int):
    ids = [*ids_of(prefix), *ids_of(9)]
    wanted = asked(engine_of(model, SMALL), ids, count=20).tokens
    for kind in (Knowing(), Lookup(), eagle(head), eagle(head, tree=False)):
        engine = engine_of(model, SMALL, kind, slots=2)
        if isinstance(kind, Knowing):
            taught(kind, model.prompt(ids), wanted)
        fixed = FixedPrefix(model.prompt(ids_of(prefix)), 1)
        for _ in fixed.compute(engine, 7):
            pass
        for _ in range(2):
            known = lend(fixed, engine, model.prompt(ids), 0)
            assert asked(engine, ids, count=20, known=known, prefix=prefix if known else 0).tokens == wanted
