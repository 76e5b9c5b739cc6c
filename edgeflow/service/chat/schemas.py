"""JSON schemas for answers: which are permitted, and the schema that forces a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from edgeflow.errors import InvalidArgument
from edgeflow.reasons import Reason
from edgeflow.service.chat.turns import ResponseFormat, Schema, SchemaFormat, Tool

MAX_SCHEMA_BYTES = 64 << 10
_REFUSED = ("pattern", "patternProperties", "x-guidance")
_OF_NAMES = ("properties", "$defs", "definitions", "dependentSchemas")  # their keys are names, not keywords
_DATA = ("enum", "const", "default", "examples")
_REFERENCE = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")


def format_schema(wanted: ResponseFormat | None) -> str:
    """The schema of an answer as JSON; "" for text."""
    if isinstance(wanted, SchemaFormat):
        field = "response_format.json_schema.schema"
        return checked(wanted.json_schema.schema_, field)
    return '{"type":"object"}' if wanted is not None and wanted.type == "json_object" else ""


def call_schema(tools: Sequence[Tool]) -> str:
    """The schema of a call of one of these tools: {"name": …, "arguments": …}; "" without tools."""
    if not tools:
        return ""
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools):
        own = f"t{index}."
        inner = dict(tool.function.parameters)
        for key in ("$defs", "definitions"):
            named = inner.pop(key, {})
            if not isinstance(named, dict):
                raise InvalidArgument(f"{key} must be an object", field=f"tools.{index}.function.parameters")
            definitions |= {f"{own}{name}": _moved(each, own) for name, each in named.items()}
        definitions[own] = _moved(inner, own)
        arguments = {"$ref": f"#/$defs/{own}"}
        properties = {"name": {"const": tool.function.name}, "arguments": arguments}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return checked({"$defs": definitions, "anyOf": calls}, "tools")


def checked(schema: Schema, field: str) -> str:
    """The schema as JSON.

    InvalidArgument if following it would mean running a client's regular expressions, resolving outside references, or
    long work.
    """
    text = json.dumps(schema, separators=(",", ":"))
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"exceeds the limit of {MAX_SCHEMA_BYTES} bytes", field=field, reason=Reason.SCHEMA_TOO_LARGE
        )
    _check(schema, field)
    _refuse_circles(schema, field)
    return text


def _refuse_circles(schema: Schema, field: str) -> None:
    """Refuse references that lead back to themselves and to nothing else."""
    ends = {id(None)}
    for start in _starts(schema):
        seen: dict[int, None] = {}
        at = start
        while id(at) not in ends:
            if id(at) in seen:
                raise InvalidArgument("$ref leads back to itself", field=field, reason=Reason.SCHEMA_REFERENCE)
            seen[id(at)] = None
            at = _same_as(schema, at)
        ends |= seen.keys()


def _starts(schema: Schema) -> list[Any]:
    named = [schema.get(key) for key in ("$defs", "definitions")]
    return [schema, *(each for names in named if isinstance(names, dict) for each in names.values())]


def _same_as(root: Schema, schema: Any) -> Any:
    """The schema to which this one refers, also as its only alternative; None if it says something itself."""
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _, _, path = reference.partition("#/")
        kind, _, name = path.partition("/")
        named = root.get(kind, {})
        return named.get(name.replace("~1", "/").replace("~0", "~")) if path else root
    choices = [schema[key] for key in ("anyOf", "allOf", "oneOf") if key in schema]
    return choices[0][0] if choices and isinstance(choices[0], list) and len(choices[0]) == 1 else None


def _check(schema: Any, field: str) -> None:
    if isinstance(schema, list):
        for each in schema:
            _check(each, field)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _REFUSED:
            raise InvalidArgument(f"{key} is not supported", field=field, reason=Reason.SCHEMA_KEYWORD)
        if key in ("$ref", "$dynamicRef") and not (isinstance(value, str) and _REFERENCE.fullmatch(value)):
            raise InvalidArgument(
                "$ref must refer to a definition inside the schema", field=field, reason=Reason.SCHEMA_REFERENCE
            )
        if key in _OF_NAMES and isinstance(value, dict):
            _check(list(value.values()), field)
        elif key not in _DATA:
            _check(value, field)


def _moved(schema: Any, own: str) -> Any:
    """A tool's schema with its references changed to where its definitions now are."""
    if isinstance(schema, list):
        return [_moved(each, own) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: value if key in _DATA else _moved(value, own) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and _REFERENCE.fullmatch(reference):
        name = reference.rpartition("/")[2] if "/" in reference else ""
        moved["$ref"] = f"#/$defs/{own}{name}"
    return moved
