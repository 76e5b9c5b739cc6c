"""Verifications may be launched before the one before is collected: the same tokens, whatever ends an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import GateRules
from edgeflow.scheduler.plan import Before, Pass, Segment
from edgeflow.scheduler.requests import Finish
from tests.cases import some_by_day
from tests.engine.chat.test_generate import CPU, engine_of
from tests.engine.chat.test_launch_ahead import ahead
from tests.engine.chat.tiny_drafts import KINDS, ON_THE_DEVICE, kind_of
from tests.engine.recorded_graphs import record
from tests.random_gates import random_gate

CAPACITY, CHUNK, COUNT, LONGEST = 96, 12, 14, 160
TEXTS = ("the cup is red. what is red?", "abc abc abc ab")
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.2, "top_p": 0.9, "seed": 3},
    "penalised": {"repetition_penalty": 1.02, "frequency_penalty": 0.05, "logprobs": 2},
}


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    torch.set_num_threads(1)
    return load_chat_model(chat_directory, torch.float32, CPU, table=ON_THE_DEVICE)


@pytest.fixture(scope="module")
def likely(model: ChatModel) -> list[int]:
    """Tokens that answers have, most of them."""
    found = Counter(token for text in TEXTS for name in PARAMS for token in alone(model, text, name).tokens)
    found.update(range(6))
    return [token for token, _ in found.most_common(6)]


@pytest.fixture(scope="module", params=KINDS)
def engines(model: ChatModel, likely: list[int], request) -> dict[bool, ChatEngine]:
    """Whose passes are run, and replayed."""
    return {graphs: drafting(model, likely, request.param, graphs) for graphs in (False, True)}


def drafting(model: ChatModel, likely: list[int], kind: str, graphs: bool) -> ChatEngine:
    drafts = kind_of(kind, model, likely)
    engine = engine_of(model, 2, CAPACITY, drafts=drafts, chunk=CHUNK, graphs=graphs, record=record)
    engine.row_permille = 0  # all drafts are verified
    engine.record_all(lambda *_: None)
    engine.seal()
    return ahead(engine)


def alone(model: ChatModel, text: str, name: str, count: int = COUNT) -> Generation:
    """The answer of passes without drafts that are run one by one."""
    engine = engine_of(model, 1, CAPACITY)
    generation = asked(engine, text, name, count)
    list(generate(engine, generation, 1000))
    return generation


def asked(engine: ChatEngine, text: str, name: str, count: int = COUNT) -> Generation:
    params = SamplingParams(max_tokens=count, **PARAMS[name])
    return Generation(engine, engine.model.text_prompt(text), params)


@pytest.fixture
def launched(monkeypatch) -> list[Segment[int]]:
    """The segments of all passes, as they are launched."""
    segments: list[Segment[int]] = []
    launch = ChatEngine.launch

    def noting(engine: ChatEngine, planned: Pass[int], *given: Any, **how: Any) -> Any:
        segments.extend(planned.segments)
        return launch(engine, planned, *given, **how)

    monkeypatch.setattr(ChatEngine, "launch", noting)
    return segments


@pytest.mark.parametrize("graphs", [False, True], ids=["run", "replayed"])
@pytest.mark.parametrize("name", PARAMS)
def test_tokens_are_those_of_passes_one_by_one(engines, model: ChatModel, graphs: bool, name: str, launched):
    engine = engines[graphs]
    for text in TEXTS:
        generation, expected = asked(engine, text, name), alone(model, text, name)
        passes = list(generate(engine, generation, CHUNK))
        assert (generation.tokens, generation.finish) == (expected.tokens, Finish.LENGTH)
        logprobs = [each for step in passes if step for each in step.logprobs]
        assert len(logprobs) >= (COUNT if "logprobs" in PARAMS[name] else 0)
    assert any(not each.certain and each.drafts for each in launched), "the test above tests something"


@pytest.mark.parametrize("graphs", [False, True], ids=["run", "replayed"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_answer_has_no_more_tokens_than_it_may(engines, model: ChatModel, graphs: bool, count: int):
    for text in TEXTS:
        generation = asked(engines[graphs], text, "greedy", count)
        given = [len(step.tokens) for step in generate(engines[graphs], generation, CHUNK) if step]
        assert generation.tokens == alone(model, text, "greedy", count).tokens and sum(given) == count


@pytest.fixture
def stopping(model: ChatModel) -> Iterator[ChatModel]:
    """The model with a stop token that an answer meets in the middle."""
    tokens = alone(model, TEXTS[0], "penalised").tokens
    token = next(each for at, each in enumerate(tokens) if 3 <= at < 11 and each not in tokens[:at])
    kept = model.generation
    model.generation = replace(kept, stop_ids=frozenset({token}))
    yield model
    model.generation = kept


@pytest.mark.parametrize("graphs", [False, True], ids=["run", "replayed"])
def test_nothing_follows_a_stop_token(engines, stopping: ChatModel, graphs: bool):
    """Nor has what a stop left under way a part in the next answer."""
    engine = engines[graphs]
    for text in (*TEXTS, TEXTS[0]):
        generation, expected = asked(engine, text, "penalised"), alone(stopping, text, "penalised")
        list(generate(engine, generation, CHUNK))
        assert (generation.tokens, generation.finish) == (expected.tokens, expected.finish)
        assert text != TEXTS[0] or (generation.finish is Finish.STOP and len(generation.tokens) < COUNT)


@pytest.mark.parametrize("graphs", [False, True], ids=["run", "replayed"])
@pytest.mark.parametrize("rows", [CAPACITY - 20, CAPACITY - 3, CAPACITY])
def test_an_answer_ends_where_the_slot_does(engines, model: ChatModel, graphs: bool, rows: int, launched):
    text = ("abcdefgh" * 12)[:rows]
    generation = asked(engines[graphs], text, "greedy", 100)
    list(generate(engines[graphs], generation, CHUNK))
    planned = list(launched)
    assert generation.tokens == alone(model, text, "greedy", 100).tokens
    assert len(generation.tokens) == CAPACITY - rows + 1
    assert max(each.start + each.length for each in planned) <= CAPACITY


@pytest.mark.parametrize(
    ("kind", "fold", "graphs"),
    some_by_day(
        product(KINDS, ("cached", "recompute"), (False, True)),
        [
            *(("lookup", "cached", True), ("lookup", "recompute", False)),
            *(("chain", "recompute", True), ("chain", "cached", False)),
            *(("tree", "cached", True), ("tree", "recompute", False)),
        ],
    ),
)
def test_a_fold_is_not_launched_after_a_pass_that_may_give_fewer_tokens(
    model: ChatModel, likely: list[int], kind: str, fold: str, graphs: bool, launched
):
    """In a prompt with two folds, and after it, over several more."""
    gate = random_gate(model.config, GateRules(sink=3, window=5, segment=9, fold=fold, positions="absolute"))

    def engine_with(drafts: Any) -> ChatEngine:
        kv = model.decoder.kv_slots(2, gate.rules.threshold, memory_format(gate, LONGEST))
        options = {"chunk": CHUNK, "graphs": graphs and drafts is not None, "record": record}
        return ChatEngine(model, kv, folding=folding_of(gate.rules), drafts=drafts, **options)

    plain, engine = engine_with(None), engine_with(kind_of(kind, model, likely))
    engine.record_all(lambda *_: None)
    engine.seal()
    for text in TEXTS:
        expected, found = (asked(each, text, "greedy", 60) for each in (plain, engine))
        list(generate(plain, expected, CHUNK))
        launched.clear()
        list(generate(ahead(engine), found, CHUNK))
        assert found.tokens == expected.tokens and len(found.tokens) == 60
        assert found.plan.folds == expected.plan.folds > 5
        folds = [each for each in launched if each.before in (Before.FOLD, Before.FOLD_KEEPING)]
        assert len(folds) >= found.plan.folds and all(each.certain for each in folds)
        assert found.plan.drafts.counts.drafts > 5
