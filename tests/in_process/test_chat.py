"""A chat model in the calling process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import edgeflow
from edgeflow_client.errors import CheckpointError, FailedPrecondition, InvalidArgument

WHO = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def chat() -> Iterator[edgeflow.LocalChat]:
    with edgeflow.load_chat("demo-chat") as chat:
        yield chat


def test_a_stream_adds_up_to_the_answer(chat: edgeflow.LocalChat):
    answer = chat.generate(WHO)
    assert answer.text.startswith("I am edgeflow's") and answer.finish == "stop"
    assert "".join(chat.stream(WHO)) == answer.text


def test_an_answer_ends_at_its_limit_or_at_a_text(chat: edgeflow.LocalChat):
    short = chat.generate(WHO, max_tokens=3)
    assert (short.finish, len(short.tokens)) == ("length", 3)
    stopped = chat.generate(WHO, stop="edgeflow")
    assert (stopped.finish, stopped.text) == ("stop", "I am ")


def test_sampling_follows_from_the_seed(chat: edgeflow.LocalChat):
    first, again, other = (chat.generate("Robot", temperature=2.0, seed=seed, max_tokens=20) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([], {}, "prompt: is empty"),
        ("", {}, "prompt: the prompt is empty"),
        ([{"role": "user", "content": ["a"]}], {}, r"prompt\[0\]: must be"),
        (WHO, {"temperature": -1.0}, "temperature: must be a number from 0.0 to 2.0"),
        (WHO, {"max_tokens": 0}, "max_tokens: must be an integer of at least 1"),
        ("word " * 5000, {}, "prompt: .* tokens, at most"),
    ],
)
def test_a_wrong_request_is_rejected(chat: edgeflow.LocalChat, prompt: object, options: dict, words: str):
    with pytest.raises(InvalidArgument, match=words):
        chat.generate(prompt, **options)


def test_one_stream_at_a_time(chat: edgeflow.LocalChat):
    stream = chat.stream(WHO)
    next(stream)
    chat.generate(WHO, max_tokens=1)
    with pytest.raises(FailedPrecondition, match="another request"):
        next(stream)


def test_a_model_that_is_off_or_closed():
    with pytest.raises(CheckpointError, match="chat is off"):
        edgeflow.load_chat("demo-chat", chat={"enabled": False})
    chat = edgeflow.load_chat("demo-chat")
    chat.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        chat.generate(WHO)
