"""JSON schemas of requests: circles of references are refused as such."""

from __future__ import annotations

from typing import Any

import pytest

from edgeflow.errors import InvalidArgument
from edgeflow.service.chat.schemas import call_schema, checked
from edgeflow.service.chat.turns import Tool

SELF = {"$ref": "#"}
A, B = {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}


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
def test_references_in_a_circle_are_refused(schema: dict[str, Any]):
    with pytest.raises(InvalidArgument, match="leads back to itself") as caught:
        checked(schema, "field")
    assert (caught.value.reason, caught.value.field) == ("SCHEMA_REFERENCE", "field")
    with pytest.raises(InvalidArgument, match="leads back to itself"):
        call_schema([Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": schema}})])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": SELF}},
        {"anyOf": [SELF, {"type": "string"}]},
        {"$defs": {"a": B, "b": {"type": "array", "items": A}}, **A},
        {"$defs": {"a": {"type": "string"}}, "type": "array", "prefixItems": [A, A]},
        {"$ref": "#/$defs/nowhere"},
        {"$defs": {"a": True}, **A},
        {"anyOf": []},
        {"allOf": 1},
    ],
)
def test_references_that_lead_somewhere_pass(schema: dict[str, Any]):
    assert checked(schema, "field")
