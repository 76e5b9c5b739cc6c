"""Masks after drafts: those of a grammar that accepts one token at a time, whatever is drafted and chosen."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits, LLTokenizer

from edgeflow.engine.chat import grammar as grammar_module
from edgeflow.engine.chat import grammar_child
from edgeflow.engine.chat.grammar import MOST_DRAFTS, Grammar, Grammars
from edgeflow.engine.chat.grammar_child import COMPILE, HANDLE, Compiler, following
from edgeflow.ipc import bounded
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow_client.errors import InvalidArgument, Unavailable
from tests.chat_checkpoint import END, VOCAB, tokenizer

CPU = torch.device("cpu")
OTHER_END = END - 1
TOKENIZER = LLTokenizer(tokenizer().to_str(), n_vocab=VOCAB, eos_token=[OTHER_END, END])
NUMBERS = {"type": "array", "items": {"type": "integer"}}
TREE = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"enum": ["cup", "arm", None]}}}
SCHEMAS = [
    {},
    {"type": "string", "maxLength": 4},
    {"type": "integer"},
    {"const": "cup"},
    {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "maxItems": 3},
    {"anyOf": [NUMBERS, {"type": "boolean"}]},
    TREE,
]


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    return load_chat_model(chat_directory, torch.float32, CPU)


@pytest.fixture(scope="module")
def grammars(model: ChatModel) -> Grammars:
    return Grammars(model.tokenizer, VOCAB, (END, OTHER_END), CPU)


def ids_of(text: str) -> list[int]:
    return tokenizer().encode(text).ids


class GrammarTwin:
    """One schema in a compiler of its own, which is told one token at a time."""

    def __init__(self, schema: Any) -> None:
        self._compiler = Compiler(TOKENIZER)
        self._schema = json.dumps(schema).encode()
        self.accepted: list[int] = []

    def allowed(self, drafts: Sequence[int] = ()) -> np.ndarray:
        """[1 + permitted, V] bool: an answer from its beginning, then draft after draft."""
        mask = bits(self._compiler.answer(COMPILE + HANDLE.pack(0) + self._schema))
        for token in self.accepted:
            mask = self._next(token)
        masks = [mask]
        for draft in drafts:
            if draft in (END, OTHER_END) or draft >= VOCAB or not masks[-1][draft]:
                break
            masks.append(self._next(draft))
        return np.stack(masks)

    def _next(self, token: int) -> np.ndarray:
        return bits(self._compiler.answer(following(0, [token])))


def bits(answer: bytes) -> np.ndarray:
    """[V] bool: the mask of an answer that has one."""
    assert answer[:1] == grammar_child.MASK
    return np.unpackbits(np.frombuffer(answer[1:], np.uint8), count=VOCAB, bitorder="little").astype(bool)


def drafted(twin: GrammarTwin, choose: random.Random, most: int) -> list[int]:
    """Up to `most` drafts, of which nearly all are permitted, stop tokens among them."""
    drafts: list[int] = []
    for _ in range(choose.randint(0, most)):
        row = twin.allowed(drafts)[-1]
        forbidden = choose.random() < 0.05
        drafts.append(choose.randrange(VOCAB + 40) if forbidden else int(choose.choice(np.flatnonzero(row))))
    return drafts


def walk(grammar: Grammar, twin: GrammarTwin, choose: random.Random, steps: int) -> None:
    """Drafts, of which some are accepted, then a token that may be the next draft or another."""
    tokens: list[int] = []
    for _ in range(steps):
        drafts = drafted(twin, choose, 5)
        grammar.accept(tokens, drafts)
        masks = grammar.allowed().numpy()
        expected = twin.allowed(drafts)
        assert np.array_equal(masks, expected)
        accepted = choose.randrange(len(masks))
        tokens = [*drafts[:accepted], int(choose.choice(np.flatnonzero(masks[accepted])))]
        twin.accepted += tokens
        if tokens[-1] in (END, OTHER_END):
            break


@given(seed=st.integers(0, 1 << 30), schema=st.sampled_from(SCHEMAS))
def test_masks_after_drafts_are_those_of_one_token_at_a_time(grammars: Grammars, seed: int, schema: Any):
    grammar = grammars.compile(json.dumps(schema)).result(30)
    walk(grammar, GrammarTwin(schema), random.Random(seed), 6)


def test_a_long_answer_is_followed_beside_its_drafts(grammars: Grammars):
    grammar = grammars.compile(json.dumps(NUMBERS)).result(30)
    twin = GrammarTwin(NUMBERS)
    twin.accepted = ids_of("[" + "1234567,\n  " * 30)
    for at in range(0, len(twin.accepted), 50):
        grammar.accept(twin.accepted[at : at + 50], ids_of("]"))
    walk(grammar, twin, random.Random(1), 20)


def test_no_row_follows_a_stop_token(grammars: Grammars):
    grammar = grammars.compile('{"type": "integer"}').result(30)
    for stop in (END, OTHER_END):
        grammar.accept(ids_of("1"), [*ids_of("23"), stop, *ids_of("4")])
        masks = grammar.allowed()
        assert masks.shape == (3, VOCAB) and masks[:, [END, OTHER_END]].all(), "its own row permits it"
    grammar.accept(ids_of("5"), [stop])
    assert grammar.allowed().shape == (1, VOCAB), "the digits that were drafted are forgotten"
    grammar.accept([*ids_of("6"), END])
    assert grammar.allowed()[0].nonzero().flatten().tolist() == [OTHER_END, END]


def test_after_the_last_token_of_a_schema_only_a_stop_token_is_permitted(grammars: Grammars):
    grammar = grammars.compile('{"const": "cup"}').result(30)
    grammar.accept(ids_of('"c'), ids_of('up"') + ids_of(" "))
    masks = grammar.allowed()
    assert len(masks) == 4 and masks[3].nonzero().flatten().tolist() == [OTHER_END, END]
    grammar.accept(ids_of("u"), ids_of("q"))
    assert grammar.allowed()[0].nonzero().flatten().tolist() == ids_of("p"), "a schema that was finished goes on"


def test_a_token_that_the_schema_forbids_is_an_error_a_draft_is_not(grammars: Grammars):
    grammar = grammars.compile(json.dumps(NUMBERS)).result(30)
    grammar.accept(ids_of("["), ids_of("x1"))
    assert grammar.allowed().shape == (1, VOCAB)
    grammar.accept(ids_of("x"), ids_of("1"))
    with pytest.raises(InvalidArgument):
        grammar.allowed()


def test_a_step_is_one_message_whatever_is_drafted(grammars: Grammars, monkeypatch: pytest.MonkeyPatch):
    woken: list[bool] = []
    grammar = grammars.compile(json.dumps(NUMBERS), lambda: woken.append(True)).result(30)
    sizes: list[int] = []
    run = bounded._Exchange.run

    def counted(exchange: Any, message: bytes, most_bytes: int) -> bytes:
        sizes.append(len(message))
        return run(exchange, message, most_bytes)

    monkeypatch.setattr(bounded._Exchange, "run", counted)
    del woken[:]
    grammar.accept(ids_of("["), ids_of("1" * MOST_DRAFTS))
    assert grammar.allowed().shape == (1 + MOST_DRAFTS, VOCAB) and grammar.ready
    grammar.accept(ids_of("1" * (MOST_DRAFTS + 1)))
    assert grammar.allowed().shape == (1, VOCAB)
    assert sizes == [9 + 4 * 65, 9 + 4 * 65]
    grammars.compile("{}").result(30)  # after what wakes
    assert woken == [True, True]


def test_too_many_tokens_in_a_step_are_rejected_and_change_nothing(grammars: Grammars):
    grammar = grammars.compile(json.dumps(NUMBERS)).result(30)
    grammar.accept(ids_of("["))
    before = grammar.allowed()
    with pytest.raises(ValueError, match="1 tokens and 65 drafts: at most 65 and 64"):
        grammar.accept(ids_of("1"), ids_of("1" * 65))
    with pytest.raises(ValueError, match="66 tokens and 0 drafts"):
        grammar.accept(ids_of("1" * 66))
    grammar.accept([])
    assert torch.equal(grammar.allowed(), before)


@pytest.mark.parametrize("vocabulary", [288, 150_000])
def test_a_huge_chain_of_a_large_vocabulary_comes_whole(model: ChatModel, vocabulary: int):
    """More bytes than a pipe takes, and than a single mask may have."""
    grammars = Grammars(model.tokenizer, vocabulary, (END,), CPU)
    grammar = grammars.compile(json.dumps(NUMBERS)).result(60)
    grammar.accept(ids_of("["), ids_of("12345678" * 8))
    masks = grammar.allowed()
    assert masks.shape == (65, vocabulary)
    assert masks[0, ids_of("0123456789]")].all() and not masks[:, VOCAB:].any()
    grammar.accept(ids_of("1"))
    assert torch.equal(grammar.allowed(), masks[1:2])


def test_an_answer_of_more_bytes_than_its_masks_may_have_is_not_read(model: ChatModel, monkeypatch: pytest.MonkeyPatch):
    grammars = Grammars(model.tokenizer, VOCAB, (END,), CPU)
    grammar = grammars.compile(json.dumps(NUMBERS)).result(60)
    monkeypatch.setattr(grammar_module, "MAX_BYTES", 37)
    grammar.accept(ids_of("["), ids_of("12"))
    assert grammar.allowed().shape == (3, VOCAB)
    monkeypatch.setattr(grammar_module, "MAX_BYTES", 36)
    grammar.accept(ids_of("1"))
    with pytest.raises(Unavailable):
        grammar.allowed()


# A name that begins takes more of the lexer in one step than LOW permits; numbers do not.
NAMES = {"type": "string", "enum": [f"x{n}" for n in range(60)]}
HARD = {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "object", "properties": {"a": NAMES}}]}}
LOW = LLParserLimits(initial_lexer_fuel=500_000, step_lexer_fuel=1000, step_max_items=25_000)
TOO_HARD = '{"a":"x1'


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler with low limits, in which HARD is compiled for answer 0."""
    monkeypatch.setattr(grammar_child, "LIMITS", LOW)
    compiler = Compiler(TOKENIZER)
    begin(compiler, 0)
    return compiler


def begin(compiler: Compiler, handle: int) -> None:
    compiler.answer(COMPILE + HANDLE.pack(handle) + json.dumps(HARD).encode())


def test_drafts_that_break_a_limit_end_the_drafts_and_not_the_answer(low: Compiler):
    twin = GrammarTwin(HARD)
    size = len(low.answer(following(0, []))) - 1
    answer = low.answer(following(0, ids_of("[1,"), ids_of(TOO_HARD)))
    twin.accepted += ids_of("[1,")
    rows = len(answer[1:]) // size
    assert 1 < rows <= len(ids_of(TOO_HARD)), "it ended before the limit"
    for text in ("2", ",3", "]"):
        answer = low.answer(following(0, ids_of(text), ids_of(",4")))
        twin.accepted += ids_of(text)
        assert np.array_equal(bits(answer)[None], twin.allowed()) and len(answer) == 1 + size, "without drafts"
    begin(low, 2)
    assert len(low.answer(following(2, ids_of("["), ids_of("1,2")))) == 1 + 4 * size, "another answer has them"


def test_an_answer_that_breaks_a_limit_does_not_break_the_next_of_its_schema(low: Compiler):
    with pytest.raises(ValueError, match="too many expressions"):
        for token in ids_of("[" + TOO_HARD):
            low.answer(following(0, [token]))
    begin(low, 2)
    assert bits(low.answer(following(2, ids_of("[1"))))[ids_of(",")].all()
