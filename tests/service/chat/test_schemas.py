"""JSON schemas of requests: circles of references are rejected as such."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeflow.service.chat.messages import SchemaFormat, Tool
from edgeflow.service.chat.schemas import FORMATS, AnswerSchema, call_schema, format_schema
from edgeflow_client.errors import InvalidArgument

SELF = {"$ref": "#"}
A, B = {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that an answer must follow where a request asks for this one."""
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    served: dict[str, Any] = json.loads(format_schema(SchemaFormat.model_validate(wanted)).text)
    return served


def tool_of(schema: dict[str, Any]) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": schema}})


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        {"$defs": {"a": A}, **A},
        {"$defs": {"a": B, "b": A}, "type": "object", "properties": {"x": A}},
        {"$defs": {"a": {"allOf": [B]}, "b": {"anyOf": [A]}}, **B},
        {"definitions": {"a/b": {"$ref": "#/definitions/a~1b"}}, "$ref": "#/definitions/a~1b"},
        {"$defs": {str(index): {"$ref": f"#/$defs/{(index + 1) % 1000}"} for index in range(1000)}},
    ],
)
def test_references_in_a_circle_are_rejected(schema: dict[str, Any]):
    with pytest.raises(InvalidArgument, match="leads back to itself") as caught:
        schema_of(schema)
    assert (caught.value.reason, caught.value.field) == ("SCHEMA_REFERENCE", "response_format.json_schema.schema")
    with pytest.raises(InvalidArgument, match="leads back to itself"):
        call_schema({0: tool_of(schema)})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": SELF}},
        {"anyOf": [SELF, {"type": "string"}]},
        {"$defs": {"a": B, "b": {"type": "array", "items": A}}, **A},
        {"$defs": {"a": {"type": "string"}}, "type": "array", "prefixItems": [A, A]},
        {"$defs": {"a": True}, **A},
        {"anyOf": []},
        {"allOf": 1},
    ],
)
def test_references_that_lead_somewhere_pass(schema: dict[str, Any]):
    assert schema_of(schema) == schema


@pytest.mark.parametrize("reference", ["#/$defs/nowhere", "#/definitions/a", "#/$defs/a~1c"])
def test_references_to_nothing_are_rejected_by_name(reference: str):
    schema = {"$defs": {"a": {}, "a/b": {}}, "items": {"$ref": reference}}
    with pytest.raises(InvalidArgument, match="which does not exist") as caught:
        call_schema({1: tool_of(schema)})
    assert (caught.value.reason, caught.value.field) == ("SCHEMA_REFERENCE", "tools.1.function.parameters")


@pytest.mark.parametrize(
    "name", ["default", "const", "enum", "examples", "example", "$ref", "format", "properties", "a/b"]
)
def test_a_name_of_a_parameter_is_not_a_keyword(name: str):
    parameters = {
        "properties": {name: {"$ref": "#/$defs/P"}},
        "$defs": {"P": {"type": "string"}, name: {"$ref": "#/$defs/P"}},
        "definitions": {"P": {"type": "number"}},
        "default": {"$ref": "#/$defs/P"},
    }
    schema = json.loads(call_schema({3: tool_of(parameters)}).text)
    moved = {"$ref": "#/$defs/t3.$defs.P"}
    assert schema["$defs"]["t3"] == {"properties": {name: moved}, "default": {"$ref": "#/$defs/P"}}
    assert schema["$defs"][f"t3.$defs.{name}"] == moved
    assert schema["$defs"]["t3.definitions.P"] == {"type": "number"}, "two definitions of one name keep apart"


def test_arguments_are_an_object_whatever_a_schema_says():
    schema = json.loads(call_schema({0: tool_of({})}).text)
    assert schema["anyOf"][0]["properties"]["arguments"] == {"type": "object", "$ref": "#/$defs/t0"}


@pytest.mark.parametrize("format_", ["binary", "password", "path", "int32", "uri-reference", "idn-email", "regex", ""])
def test_a_format_that_is_an_annotation_is_dropped(format_: str):
    text = {"type": "string", "format": format_}
    schema = {"properties": {"format": text}, "default": text, "items": [text], "$defs": {"format": text}}
    plain = {"type": "string"}
    dropped = {"properties": {"format": plain}, "default": text, "items": [plain], "$defs": {"format": plain}}
    assert schema_of(schema) == dropped


@pytest.mark.parametrize("format_", sorted(FORMATS))
def test_a_format_that_answers_keep_stays(format_: str):
    assert schema_of({"format": format_}) == {"format": format_}


def test_a_schema_s_own_address_is_dropped():
    assert schema_of({"$id": "https://example.org/a", "properties": {"$id": SELF}}) == {"properties": {"$id": SELF}}


@pytest.mark.parametrize(
    ("fields", "told", "named"),
    [
        (("tools.4.function.parameters",), "schema", "tools.4.function.parameters"),
        (("tools.0.function.parameters", "tools.4.function.parameters"), "schema.1", "tools.4.function.parameters"),
        (("tools.0.function.parameters", "tools.4.function.parameters"), "schema", "tools"),
        (("response_format.json_schema.schema",), "schema.1", "response_format.json_schema.schema"),
        (("response_format",), "prompt", "prompt"),
        ((), "schema", "schema"),
    ],
)
def test_errors_of_the_worker_name_the_request_s_field(fields: tuple[str, ...], told: str, named: str):
    error = AnswerSchema("{}", fields).named(InvalidArgument("is odd", field=told, reason="SCHEMA"))
    assert (error.text, error.field, error.reason) == (f"{named}: is odd", named, "SCHEMA")
