"""Fields that OpenAI's clients send with null, a default or nothing in them, and answers that are sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import completion_create_params as of_texts
from openai.types.chat import ChatCompletionMessage, ParsedChatCompletionMessage
from openai.types.chat import completion_create_params as of_chat

from edgeflow.service.chat.body import ChatBody, CompletionBody, parse
from edgeflow_client.errors import InvalidArgument

TURN = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "halt", "arguments": "{}"}}
CHAT, TEXT = (ChatBody, {"messages": [TURN]}), (CompletionBody, {"prompt": "x"})
REQUIRED = ("messages", "prompt")


def parsed(kind: Any, **body: Any) -> Any:
    return parse(kind[0], "application/json", json.dumps({**kind[1], **body}).encode())


def rejected(kind: Any, **body: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        parsed(kind, **body)
    return caught.value


@pytest.mark.parametrize("kind", [CHAT, TEXT], ids=["chat", "text"])
def test_null_means_the_default_in_every_field(kind: Any):
    official = (of_chat if kind is CHAT else of_texts).CompletionCreateParamsBase.__annotations__
    names = {*kind[0].model_fields, *official, "stream"} - {*REQUIRED}
    assert len(names) > 20
    assert parsed(kind, **dict.fromkeys(names)) == parsed(kind)


NOTHING: dict[str, list[Any]] = {
    "logit_bias": [{}],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "metadata": [{}, {"run": "7"}],
    "modalities": [["text"]],
    "parallel_tool_calls": [True, False],
    "prompt_cache_key": ["arm"],
    "prompt_cache_retention": ["24h"],
    "reasoning_effort": ["none"],
    "safety_identifier": ["someone"],
    "service_tier": ["auto", "default"],
    "stop": [[]],
    "store": [False],
    "stream_options": [{}, {"include_usage": None, "include_obfuscation": False}],
    "tools": [[]],
    "top_k": [-1, 0],
    "user": ["someone"],
    "verbosity": ["medium"],
}
SOMETHING: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "halt"},
    "functions": [{"name": "halt"}],
    "logit_bias": {"5": 100},
    "modalities": ["text", "audio"],
    "moderation": {"model": "x"},
    "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "high",
    "service_tier": "priority",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_value_that_asks_for_nothing_is_accepted(name: str):
    for value in NOTHING[name]:
        parsed(CHAT, **{name: value})


@pytest.mark.parametrize("name", SOMETHING)
def test_a_value_that_would_change_an_answer_is_rejected_by_name(name: str):
    assert rejected(CHAT, **{name: SOMETHING[name]}).field == name


def test_an_unserved_value_is_answered_with_those_that_are_permitted():
    assert rejected(CHAT, service_tier="flex").text == (
        'service_tier: is not supported; permitted: null, "auto", "default"'
    )
    assert rejected(CHAT, store=0).field == "store", "0 is not false"
    assert rejected(TEXT, best_of=2).text == "best_of: is not supported; permitted: null, 1"
    parsed(TEXT, best_of=1, echo=False, suffix="")


ANSWERS: dict[str, dict[str, Any]] = {
    "as it is dumped": ChatCompletionMessage(role="assistant", content="yes").model_dump(),
    "with lists that are empty": {"role": "assistant", "content": "yes", "annotations": [], "tool_calls": []},
    "parsed": ParsedChatCompletionMessage(role="assistant", content='{"a":1}', parsed={"a": 1}).model_dump(),
    "a call": ChatCompletionMessage(role="assistant", tool_calls=[CALL]).model_dump(),
    "a call from a stream": {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **CALL}]},
    "a parsed call": {
        "role": "assistant",
        "tool_calls": [{**CALL, "function": {**CALL["function"], "parsed_arguments": {"x": [1]}}}],
    },
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_can_be_sent_back(name: str):
    message = parsed(CHAT, messages=[TURN, ANSWERS[name], TURN]).messages[1]
    assert message.content == ANSWERS[name].get("content")
    assert [each.function.name for each in message.tool_calls or []] == ["halt"] * ("call" in name)


PART = {"type": "text", "text": "hi"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "key of a text part": ({"content": [{**PART, "cache_control": {}}]}, "content.0.cache_control", "Extra inputs"),
    "key of a picture": (
        {"content": [{"type": "image_url", "image_url": {"url": "x"}, "a": 1}]},
        "content.0.a",
        "Extra inputs",
    ),
    "no text": ({"content": [{"type": "text"}]}, "content.0.text", "required"),
    "kind of part": ({"content": [{"type": "video"}]}, "content.0.type", "must be one of: text, image_url"),
    "no part": ({"content": [5]}, "content.0", "must be an object"),
    "parts": ({"content": [PART] * 65}, "content", "at most 64 items"),
    "content": ({"content": 5}, "content", "must be a text or a list of parts"),
    "null where something is required": ({"content": None}, "content", "must be a text or a list of parts"),
    "annotations": ({"role": "assistant", "annotations": [{}]}, "annotations", r"permitted: null, \[\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_field_that_is_wrong_is_named(name: str):
    changes, field, why = WRONG[name]
    error = rejected(CHAT, messages=[TURN, {**TURN, **changes}])
    assert error.field == f"messages.1.{field}"
    with pytest.raises(InvalidArgument, match=why):
        raise error


def test_other_unions_name_what_is_wrong_too():
    assert "at most 4 items" in rejected(CHAT, stop=["a", "b", "c", "d", "e"]).text
    assert rejected(CHAT, stop=5).text == "stop: must be a text or a list of texts"
    assert rejected(CHAT, stop=["a", 5]).field == "stop.1"
    assert rejected(CHAT, response_format={**SCHEMA, "a": 1}).field == "response_format.a"
    inner = {**SCHEMA["json_schema"], "a": 1}
    assert rejected(CHAT, response_format={**SCHEMA, "json_schema": inner}).field == "response_format.json_schema.a"
    assert rejected(TEXT, prompt=[]).text.startswith("prompt: must be a text, a list of texts, a list of token ids")
    assert rejected(CHAT, messages=[{"role": "wizard"}]).text.startswith("messages.0.role: must be one of: system, ")
