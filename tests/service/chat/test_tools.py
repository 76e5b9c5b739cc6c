"""Answers in JSON and tool calls over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edgeflow.service.chat.body import ChatBody, parse
from edgeflow.service.chat.schemas import MAX_SCHEMA_BYTES, call_schema
from edgeflow.service.chat.tool_calls import CallReader
from edgeflow.text.chat_template import ChatTemplate
from edgeflow_client.errors import InvalidArgument
from tests.chat_checkpoint import TEMPLATE
from tests.service.chat.test_answers import ASKED, CHAT, streamed
from tests.service.chat.test_openai import official
from tests.service.chat.test_schemas import schema_of, tool_of
from tests.service.chat.workers import Loaded, chatting

SHORT = {"type": "string", "maxLength": 4}
POSE = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
CLOSED = {**POSE, "additionalProperties": False}
MOVE = {"type": "function", "function": {"name": "move", "description": "move the arm", "parameters": CLOSED}}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {**CLOSED, "properties": {}, "required": []}}}
NAMED = {"type": "function", "function": {"name": "move"}}
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}({{ t.function.parameters.required | tojson }}) {% endfor %}"
    + TEMPLATE.replace("'assistant']", "'assistant', 'tool']").replace(
        "{% if m.content is string %}",
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
        "{% if m.content is string %}",
    )
)


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.fixture
def tool_model(text_model: Loaded, tmp_path) -> Loaded:
    """The same model; the front reads a template that takes tools."""
    for file in text_model.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return replace(text_model, path=tmp_path)


async def test_an_answer_follows_its_schema(text_model: Loaded):
    body = {**ASKED, "max_tokens": 200, "temperature": 1.0, "seed": 3}
    async with chatting(text_model) as (http, _):
        answer = (await http.post(CHAT, json={**body, "response_format": format_of(CLOSED)})).json()
        assert 0 <= json.loads(answer["choices"][0]["message"]["content"])["x"] <= 9
        assert answer["choices"][0]["finish_reason"] == "stop"
        events = await streamed(http, CHAT, {**body, "response_format": format_of(CLOSED)})
        text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
        assert text == answer["choices"][0]["message"]["content"]
        any_object = (await http.post(CHAT, json={**body, "response_format": {"type": "json_object"}})).json()
        assert any_object["choices"][0]["message"]["content"].startswith("{")
        plain = await http.post(CHAT, json={**body, "response_format": {"type": "text"}})
        assert plain.status_code == 200


async def test_schemas_that_cannot_be_are_rejected_and_the_next_is_answered(text_model: Loaded):
    large = {"enum": ["x" * 1000 + str(index) for index in range(70)]}
    async with chatting(text_model) as (http, _):
        for schema in ({"type": "nothing"}, {"pattern": "(a+)+$"}, {"$ref": "http://127.0.0.1/"}, large):
            answer = await http.post(CHAT, json={**ASKED, "response_format": format_of(schema)})
            assert (answer.status_code, answer.json()["error"]["param"][:15]) == (400, "response_format")
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_tool_that_must_be_called_is_called(tool_model: Loaded, choice: Any):
    async with chatting(tool_model, chat__capacity=400) as (_, served), official(served) as client:
        wanted = {"model": "small", "messages": ASKED["messages"], "max_tokens": 300, "temperature": 1, "seed": 1}
        create = client.chat.completions.create
        whole = await create(**wanted, tools=[MOVE, STOP], tool_choice=choice)
        (call,) = whole.choices[0].message.tool_calls
        assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("tool_calls", None)
        assert call.function.name in ({"move", "stop"} if choice == "required" else {"move"})
        if call.function.name == "move":
            assert 0 <= json.loads(call.function.arguments)["x"] <= 9
        chunks = [chunk async for chunk in await create(**wanted, tools=[MOVE, STOP], tool_choice=choice, stream=True)]
        told = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
        assert [(each.index, each.function.name, each.function.arguments) for each in told] == [
            (0, call.function.name, call.function.arguments)
        ]
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        cut = await create(
            **{**wanted, "max_tokens": 3}, tools=[MOVE], tool_choice=choice if choice != NAMED else NAMED
        )
        assert cut.choices[0].finish_reason == "length" and not cut.choices[0].message.tool_calls


async def test_any_tool_can_be_forced_and_an_error_names_the_one_that_cannot(tool_model: Loaded):
    """No schema at all, references under the names of keywords, formats; and what the library cannot follow."""
    colour = {
        "$defs": {"C": {"enum": ["red"]}},
        "properties": {"default": {"$ref": "#/$defs/C"}},
        "required": ["default"],
    }
    secret = {"properties": {"key": {"type": "string", "format": "password", "maxLength": 2}}, "required": ["key"]}
    strange = {"required": [], "if": {}, "then": {}}
    asked = {**ASKED, "max_tokens": 150, "seed": 2, "tool_choice": "required"}

    def tools(*schemas: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "f", "parameters": each}} for each in schemas]

    async with chatting(tool_model, chat__capacity=400) as (http, _):
        for schema, name in (({"required": []}, None), (colour, "default"), (secret, "key")):
            answer = (
                await http.post(CHAT, json={**asked, "tools": tools({**schema, "additionalProperties": False})})
            ).json()
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert list(arguments) == ([name] if name else [])
        for schemas, field in (
            ((strange,), 0),
            ((colour, strange, secret), 1),
            (({"type": "string", "required": []},), 0),
        ):
            error = (await http.post(CHAT, json={**asked, "tools": tools(*schemas)})).json()["error"]
            assert (error["param"], error["code"]) == (f"tools.{field}.function.parameters", "INVALID_ARGUMENT"), error
            assert error["message"].startswith(f"{error['param']}: ") and error["message"].count("tools.") == 1


async def test_tools_reach_the_template_and_so_do_calls_and_their_results(tool_model: Loaded):
    call = {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": '{"x": 3}'}}
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    rendered = ChatTemplate(TOOL_TEMPLATE, {})(
        [
            *ASKED["messages"],
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "move", "arguments": {"x": 3}}}]},
            {"role": "tool", "content": "done"},
        ],
        tools=[MOVE],
    )
    async with chatting(tool_model, chat__capacity=400) as (http, _):
        for choice, used in ((None, True), ("auto", True), ("none", False)):
            body = {**ASKED, "messages": turns, "tools": [MOVE], "max_tokens": 2, "tool_choice": choice}
            answer = (await http.post(CHAT, json=body)).json()
            expected = len(tool_model.chat.tokenizer.encode(rendered, special=False))
            assert (answer["usage"]["prompt_tokens"] == expected) == used
            assert "tool_calls" not in answer["choices"][0]["message"]


async def test_a_model_whose_template_takes_no_tools_says_so(text_model: Loaded):
    async with chatting(text_model) as (http, _):
        answer = await http.post(CHAT, json={**ASKED, "tools": [MOVE]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tools": [MOVE] * 65}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [MOVE], "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [MOVE], "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "[" * 50_000}}],
                    }
                ]
            },
            "messages.0.tool_calls.0.function.arguments",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_tools_that_make_no_sense_are_rejected_by_name(changes: dict[str, Any], field: str):
    with pytest.raises(InvalidArgument) as caught:
        parse(ChatBody, "application/json", json.dumps({**ASKED, **changes}).encode())
    assert caught.value.field == field


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "a"}}},
        {"items": [{"anyOf": [{"patternProperties": {"a": {}}}]}]},
        {"x-guidance": {"lenient": True}},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/examples/0", "examples": [{"pattern": "a"}]},
        {"$ref": 5},
        {"$defs": {"a": {"pattern": "a"}}},
        {"enum": ["x" * MAX_SCHEMA_BYTES]},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_schemas_with_more_than_they_may_have(schema: dict[str, Any]):
    with pytest.raises(InvalidArgument) as caught:
        schema_of(schema)
    assert caught.value.field == "response_format.json_schema.schema"
    with pytest.raises(InvalidArgument) as caught:
        call_schema({2: tool_of(schema)})
    assert caught.value.field == "tools.2.function.parameters"


def test_names_and_data_are_no_keywords():
    properties = {"pattern": {"type": "string"}}
    schema_of({"properties": properties, "default": {"pattern": "a"}, "enum": [{"pattern": 1}]})


def test_definitions_of_tools_keep_apart():
    parameters = {"$defs": {"P": {"type": "integer"}}, "properties": {"p": {"$ref": "#/$defs/P"}, "q": {"$ref": "#"}}}
    body = parse(
        ChatBody,
        "application/json",
        json.dumps(
            {
                **ASKED,
                "tools": [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in "ab"],
                "tool_choice": "required",
            }
        ).encode(),
    )
    schema = json.loads(call_schema(body.forced_tools).text)
    assert set(schema["$defs"]) == {"t0.$defs.P", "t0", "t1.$defs.P", "t1"}
    assert schema["$defs"]["t1"]["properties"] == {"p": {"$ref": "#/$defs/t1.$defs.P"}, "q": {"$ref": "#/$defs/t1"}}


CALL = '{"name": "move", "arguments": {"x": 1}}'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "plain", "names"),
    [
        ("just text", "just text", []),
        (f"I go.\n<tool_call>\n{CALL}\n</tool_call>", "I go.\n", ["move"]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n", "", ["move", "move"]),
        (f"<tool_call>{CALL}", "", ["move"]),
        ("a < b <tool", "a < b <tool", []),
        ("<tool_call>no json</tool_call>!", "<tool_call>no json</tool_call>!", []),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": ["move"], "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": "move", "arguments": [1]}</tool_call>', None, []),
        ('<tool_call>{"name": "mo', None, []),
        (f"<tool_call>{'[' * 5000}</tool_call>", None, []),
    ],
    ids=lambda value: str(value)[:30],
)
def test_calls_are_found_in_any_pieces(text: str, plain: str | None, names: list[str], size: int):
    reader = CallReader(["move"], inside=False)
    found = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
    found.append(reader.finish())
    calls = [call for each in found for call in each.calls]
    assert "".join(each.text for each in found) == (text if plain is None else plain)
    assert [call.name for call in calls] == names and [call.index for call in calls] == list(range(len(names)))
    assert all(json.loads(call.arguments) == {"x": 1} for call in calls)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_after_the_first_call_is_dropped_if_one_is_requested(size: int):
    text = f"I go. <tool_call>{CALL}</tool_call> and <tool_call>{CALL}</tool_call>!"
    reader = CallReader(["move"], inside=False, one=True)
    found = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
    assert reader.is_complete
    found.append(reader.finish())
    assert "".join(each.text for each in found) == "I go. "
    assert [call.name for each in found for call in each.calls] == ["move"]


def test_a_call_that_the_prompt_began():
    reader = CallReader(["move"], inside=True)
    assert reader.push(CALL).calls == ()
    assert reader.finish().calls[0].name == "move"
    broken = CallReader(["move"], inside=True)
    assert broken.push('{"na').text + broken.finish().text == '{"na'
