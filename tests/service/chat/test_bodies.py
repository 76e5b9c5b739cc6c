"""Bodies of the chat routes: values and errors are counted before anything is built."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from pydantic import BaseModel

from edgeflow.service.chat.body import MAX_VALUES, ChatBody, CompletionBody, TokenizeBody, parse
from edgeflow.service.chat.front import PrefixBody
from edgeflow.service.chat.messages import MAX_PARTS
from edgeflow_client.errors import InvalidArgument, RequestError

JSON = "application/json"
MIB = 1 << 20
MANY = 5000  # of something small: the body has fewer values than it may have
TURN = {"role": "user", "content": "hi"}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"type": "function", "function": {"name": "f"}}
KEYS = {f"key {index}": index for index in range(2 * MANY)}


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**TURN, **fields}]}


def answered(*calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": list(calls)}]}


def called(arguments: str) -> dict[str, Any]:
    return answered({**CALL, "function": {"name": "f", "arguments": arguments}})


def rejected(kind: type[BaseModel], data: bytes) -> tuple[RequestError, int]:
    """The error, and the memory that it took to find it."""
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            parse(kind, JSON, data)
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody, TokenizeBody, PrefixBody])
@pytest.mark.parametrize(
    "data",
    [
        b'{"messages":[{"role":"user","content":[' + b"{}," * 65_000 + b"{}]}]}",
        b'{"messages":[' + b"{}," * 2_700_000 + b"{}]}",
        b"{" + b",".join(b'"%d":1' % index for index in range(700_000)) + b"}",
        b'{"stop":[' + b'"",' * 2_700_000 + b'""]}',
    ],
    ids=["parts", "messages", "keys", "stops"],
)
def test_values_are_counted_before_anything_is_built(kind: type[BaseModel], data: bytes):
    error, peak = rejected(kind, data)
    assert (error.reason, peak < MIB) == ("BODY_VALUES", True), (error, peak)


FEW = {
    "empty parts": (ChatBody, turn(content=[{}] * MANY), "messages.0.content.0"),
    "good parts": (ChatBody, turn(content=[{"type": "text", "text": ""}] * MANY), "messages.0.content"),
    "empty messages": (ChatBody, {"messages": [{}] * MANY}, "messages.0"),
    "numbers as messages": (TokenizeBody, {"messages": [1] * MANY}, "messages.0"),
    "unknown keys": (ChatBody, {"messages": [TURN], **KEYS}, "key 0"),
    "unknown keys of a message": (ChatBody, turn(**KEYS), "messages.0.key 0"),
    "unknown keys of a part": (
        ChatBody,
        turn(content=[{"type": "text", "text": "", **KEYS}]),
        "messages.0.content.0.key 0",
    ),
    "unknown options": (CompletionBody, {"prompt": "x", "stream_options": KEYS}, "stream_options.key 0"),
    "unknown keys of a prefix": (PrefixBody, turn(**KEYS), "messages.0.key 0"),
    "empty calls": (ChatBody, answered(*[{}] * MANY), "messages.0.tool_calls.0"),
    "too many calls": (ChatBody, answered(*[CALL] * (MANY // 4)), "messages.0.tool_calls"),
    "tools": (ChatBody, {"messages": [TURN], "tools": [FUNCTION] * (MANY // 4)}, "tools"),
    "empty tools": (ChatBody, {"messages": [TURN], "tools": [{}] * MANY}, "tools.0"),
    "stops": (CompletionBody, {"prompt": "x", "stop": [1] * MANY}, "stop.0"),
    "logit_bias": (CompletionBody, {"prompt": "x", "logit_bias": KEYS}, "logit_bias"),
}


@pytest.mark.parametrize(("kind", "body", "field"), FEW.values(), ids=FEW.keys())
def test_the_first_errors_are_enough(kind: type[BaseModel], body: dict[str, Any], field: str):
    data = json.dumps(body).encode()
    built = tracemalloc.start() or json.loads(data)
    values_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    error, peak = rejected(kind, data)
    assert error.field.startswith(field) and error.http_status == 400, error
    assert built and peak < 3 * values_bytes + 4 * len(data), "no more than parsing the same takes"


@pytest.mark.parametrize(
    "arguments",
    ["[]", "{", "NaN", '{"a":' + "[" * 5000, '{"a":[' + "[]," * 5000 + "[]]}", '{"a":1e5, "a":2}', "\ud800"],
    ids=lambda text: repr(text[:20]),
)
def test_the_arguments_of_a_call_are_bounded_too(arguments: str):
    error, peak = rejected(ChatBody, json.dumps(called(arguments)).encode())
    assert error.field == "messages.0.tool_calls.0.function.arguments", error
    assert peak < MIB // 2


def test_the_largest_conversation_is_accepted():
    parts = [{"type": "text", "text": "x"}] * MAX_PARTS
    body = {"messages": [{"role": "user", "content": parts}] * 64, "tools": [FUNCTION] * 64}
    assert len(parse(ChatBody, JSON, json.dumps(body).encode()).messages) == 64
    assert parse(PrefixBody, JSON, json.dumps({"messages": [TURN]}).encode()).messages[0].content == "hi"


def test_values_of_schemas_count():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": [0] * MAX_VALUES}}}
    with pytest.raises(InvalidArgument, match="values"):
        parse(ChatBody, JSON, json.dumps({"messages": [TURN], "tools": [tool]}).encode())


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/msgpack"])
def test_other_content_types_are_unsupported(content_type: str):
    with pytest.raises(RequestError) as caught:
        parse(ChatBody, content_type, json.dumps(turn()).encode())
    assert (caught.value.http_status, caught.value.field) == (415, "content-type")
