"""Training texts: the learned tokens, the rejected lines, and the batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.lab.training.gate.examples import Example
from edgeflow.lab.training.gate.run import Epochs
from edgeflow.lab.training.gate.text_files import GateData, Line, ModelText
from edgeflow.models.memory_gate import GateRules
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import END, TEMPLATE, VOCAB, tokenizer

RULES = GateRules(sink=2, window=3, segment=5)
LONG = "a text that is longer than sink, window and segment"
CHAT = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "22"},
    {"role": "user", "content": "not answered"},
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    folder = tmp_path_factory.mktemp("model")
    tokenizer().save(str(folder / "tokenizer.json"))
    return ModelText(TextTokenizer(folder, VOCAB), ChatTemplate(TEMPLATE, {}), frozenset({END}))


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines))
    return path


def learned_text(text: ModelText, example: Example) -> str:
    ids = [token for token, learned in zip(example.ids, example.learned, strict=True) if learned]
    return text.tokenizer.decode(ids, special=True)


def test_only_answers_of_messages_are_learned(text: ModelText):
    example = text.example({"messages": CHAT})
    assert learned_text(text, example) == "1<|im_end|>22<|im_end|>"
    whole = text.tokenizer.decode(example.ids, special=True)
    assert whole.endswith("<|im_start|>assistant\n22<|im_end|>")
    assert text.tokenizer.decode(example.ids[: example.known], special=True).endswith("<|im_start|>assistant\n")
    assert example.learned[example.known] and not example.learned[example.known - 1]


def test_every_token_of_a_text_is_learned(text: ModelText):
    example = text.example({"text": LONG})
    assert learned_text(text, example) == LONG and example.known == len(example.ids)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{\n", "not JSON"),
        ("[]\n", "a line must be"),
        ({"text": "a", "messages": []}, "a line must be"),
        ({"prompt": "a"}, "a line must be"),
        ({"text": 5}, "text must be text"),
        ({"messages": {}}, "messages must be a list of objects with a role and a content of text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "a content of text"),
        ({"messages": CHAT[:1]}, "no answer: none has the role assistant"),
        ({"messages": [{"role": "robot", "content": "a"}, CHAT[1]]}, "unknown role robot"),
        ({"text": "long " * 30000}, "a text has at most 131072 tokens, got 150000"),
        ({"text": "\ud800"}, "text: contains an unpaired surrogate"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(text: ModelText, tmp_path: Path, line: object, message: str):
    path = write_lines(tmp_path / "some.jsonl", {"text": LONG}, "\n", line)
    with pytest.raises(ConfigError, match=rf"data: .*some\.jsonl:3: .*{message}"):
        GateData([path], text, RULES)


def test_messages_need_a_chat_template(text: ModelText, tmp_path: Path):
    path = write_lines(tmp_path / "some.jsonl", {"messages": CHAT})
    with pytest.raises(ConfigError, match=r"some\.jsonl:1: this model has no chat template"):
        GateData([path], ModelText(text.tokenizer, None, text.stop_ids), RULES)


def test_a_template_that_rewrites_earlier_answers_is_rejected(text: ModelText, tmp_path: Path):
    forgetful = "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    path = write_lines(tmp_path / "some.jsonl", {"messages": CHAT})
    with pytest.raises(
        ConfigError, match=r"some\.jsonl:1: the chat template writes a conversation so that it does not"
    ):
        GateData([path], ModelText(text.tokenizer, ChatTemplate(forgetful, {}), text.stop_ids), RULES)


def test_a_missing_file_and_texts_that_teach_nothing_are_rejected(text: ModelText, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data: .*none\.jsonl cannot be read"):
        GateData([tmp_path / "none.jsonl"], text, RULES)
    path = write_lines(tmp_path / "short.jsonl", {"text": "short"}, {"text": "shorter"})
    with pytest.raises(ConfigError, match=r"none of 2 lines .* at least 10 tokens"):
        GateData([path], text, RULES)


def test_lines_are_read_again_as_they_were(text: ModelText, tmp_path: Path):
    first = write_lines(tmp_path / "a.jsonl", {"text": LONG}, "\r\n", {"text": "short"}, {"messages": CHAT})
    second = write_lines(tmp_path / "b.jsonl", json.dumps({"text": "ü" + LONG}))
    counts: list[int] = []
    data = GateData([first, second], text, RULES, counts.append)
    assert data.short == 1 and counts == [1, 2, 3, 4]
    wanted: list[Any] = [{"text": LONG}, {"messages": CHAT}, {"text": "ü" + LONG}]
    assert [data.read(index) for index in range(3)] == [text.example(each) for each in wanted]
    assert [(line.path.name, line.number) for line in data.lines] == [("a.jsonl", 1), ("a.jsonl", 4), ("b.jsonl", 1)]
    assert data.digest != GateData([second, first], text, RULES).digest


@given(
    tokens=st.lists(st.integers(10, 60), min_size=1, max_size=60),
    batch_tokens=st.integers(1, 200),
    seed=st.integers(0, 3),
)
def test_an_epoch_has_every_line_once(tokens: list[int], batch_tokens: int, seed: int):
    lines = [Line(Path("x"), number, 0, count, RULES.segments(count)) for number, count in enumerate(tokens)]
    epochs = Epochs(lines, batch_tokens, seed)
    length = epochs.steps(1)
    both = [epochs.batch(step) for step in range(epochs.steps(2))]
    for batches in (both[:length], both[length:]):
        assert sorted(index for batch in batches for index in batch) == list(range(len(lines)))
    for batch in both:
        assert len(batch) == 1 or sum(tokens[index] for index in batch) <= batch_tokens
    again = Epochs(lines, batch_tokens, seed)
    assert [again.batch(step) for step in reversed(range(len(both)))] == both[::-1]


def test_batches_hold_texts_that_are_cut_alike():
    lines = [Line(Path("x"), number, 0, 10 + 5 * (number % 4), number % 4) for number in range(400)]
    epochs = Epochs(lines, 100, 0)
    batches = [epochs.batch(step) for step in range(epochs.steps(1))]
    mixed = sum(len({lines[index].segments for index in batch}) > 1 for batch in batches)
    assert mixed <= len(batches) / 4
    assert [epochs.batch(step) for step in range(epochs.steps(1), 2 * epochs.steps(1))] != batches
