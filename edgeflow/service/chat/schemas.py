"""JSON schemas for answers: which are permitted, and the schema that forces a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgeflow.service.chat.messages import ResponseFormat, Schema, SchemaFormat, Tool
from edgeflow_client.errors import InvalidArgument, RequestError
from edgeflow_client.reasons import Reason

MAX_SCHEMA_BYTES = 64 << 10
MAX_NAME = 64  # characters of a client's name that an error repeats
FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"])
"""Formats that answers keep. Others (binary, password, path, int32, …) are annotations and are dropped."""
_REJECTED = ("pattern", "patternProperties", "x-guidance")
_DEFINITIONS = ("$defs", "definitions")
_OF_NAMES = ("properties", *_DEFINITIONS, "dependentSchemas")  # their keys are names, not keywords
_DATA = ("enum", "const", "default", "examples", "example")
_REFERENCES = ("$ref", "$dynamicRef")
_REFERENCE = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """The schema that an answer must follow, if any."""

    text: str = ""
    """A JSON schema; "" for text."""
    fields: tuple[str, ...] = ()
    """The field from which the schema was made; of a forced call, one for each tool, in the order of its `anyOf`."""

    def named(self, error: RequestError) -> RequestError:
        """An error of the worker about the schema (`schema`, `schema.N` for an alternative) by the request's field."""
        kind, _, index = error.field.partition(".")
        if kind != "schema" or not self.fields:
            return error
        one = len(self.fields) == 1
        field = self.fields[0] if one else self.fields[int(index)] if index else "tools"
        why, wait_ms = error.text.removeprefix(f"{error.field}: "), error.retry_after_ms
        return type(error)(why, field=field, reason=error.reason, retry_after_ms=wait_ms)


NO_SCHEMA = AnswerSchema()


def format_schema(wanted: ResponseFormat | None) -> AnswerSchema:
    """The schema of an answer without a call."""
    if isinstance(wanted, SchemaFormat):
        field = "response_format.json_schema.schema"
        schema = wanted.json_schema.schema_
        _check(schema, field)
        return AnswerSchema(_text(_served(_without_id(schema), lambda reference: reference), field), (field,))
    if wanted is not None and wanted.type == "json_object":
        return AnswerSchema('{"type":"object"}', ("response_format",))
    return NO_SCHEMA


def call_schema(tools: Mapping[int, Tool]) -> AnswerSchema:
    """The schema of a call of one of these tools: {"name": …, "arguments": {…}}. tools: by index in the request.

    Arguments are an object, whatever else the tool's schema says of them.
    """
    definitions: dict[str, Any] = {}
    calls: list[Schema] = []
    fields = tuple(f"tools.{index}.function.parameters" for index in tools)
    for (index, tool), field in zip(tools.items(), fields, strict=True):
        _check(tool.function.parameters, field)
        own = f"#/$defs/t{index}"
        served = _served(_without_id(tool.function.parameters), partial(_moved, own))
        for key in _DEFINITIONS:
            definitions |= {f"t{index}.{key}.{name}": each for name, each in served.pop(key, {}).items()}
        definitions[f"t{index}"] = served
        properties = {"name": {"const": tool.function.name}, "arguments": {"type": "object", "$ref": own}}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return AnswerSchema(
        _text({"$defs": definitions, "anyOf": calls}, fields[0] if len(fields) == 1 else "tools"), fields
    )


def _text(schema: Schema, field: str) -> str:
    text = json.dumps(schema, separators=(",", ":"))
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"exceeds the limit of {MAX_SCHEMA_BYTES} bytes", field=field, reason=Reason.SCHEMA_TOO_LARGE
        )
    return text


def _check(schema: Schema, field: str) -> None:
    """InvalidArgument if the schema has regular expressions, references that lead outside or nowhere, or would cost too
    much work.
    """
    for key in _DEFINITIONS:
        if not isinstance(schema.get(key, {}), dict):
            raise InvalidArgument(f"{key} must be an object", field=field, reason=Reason.SCHEMA)
    _check_keywords(schema, schema, field)
    _reject_circles(schema, field)


def _reject_circles(schema: Schema, field: str) -> None:
    """Reject references that lead back to themselves and to nothing else."""
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
    """The schema to which this one refers, also as its only alternative; None if it has keywords besides."""
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        kind, name = _named(reference)
        return root[kind][name] if kind else root
    choices = [schema[key] for key in ("anyOf", "allOf", "oneOf") if key in schema]
    return choices[0][0] if choices and isinstance(choices[0], list) and len(choices[0]) == 1 else None


def _check_keywords(schema: Any, root: Schema, field: str) -> None:
    if isinstance(schema, list):
        for each in schema:
            _check_keywords(each, root, field)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _REJECTED:
            raise InvalidArgument(f"{key} is not supported", field=field, reason=Reason.SCHEMA_KEYWORD)
        if key in _REFERENCES:
            _check_reference(value, root, field)
        if key in _OF_NAMES and isinstance(value, dict):
            _check_keywords(list(value.values()), root, field)
        elif key not in _DATA:
            _check_keywords(value, root, field)


def _check_reference(reference: Any, root: Schema, field: str) -> None:
    if not (isinstance(reference, str) and _REFERENCE.fullmatch(reference)):
        why = "$ref must refer to a definition inside the schema"
        raise InvalidArgument(why, field=field, reason=Reason.SCHEMA_REFERENCE)
    kind, name = _named(reference)
    if kind and name not in root.get(kind, {}):
        why = f"$ref refers to {kind}/{name[:MAX_NAME]}, which does not exist"
        raise InvalidArgument(why, field=field, reason=Reason.SCHEMA_REFERENCE)


def _named(reference: str) -> tuple[str, str]:
    """The kind and the name of the definition that a reference means; both empty for the whole schema."""
    kind, _, name = reference.removeprefix("#").removeprefix("/").partition("/")
    return kind, name.replace("~1", "/").replace("~0", "~")


def _moved(own: str, reference: str) -> str:
    """A reference in a schema that has become a definition of a larger one. own: the reference to that definition."""
    return own + reference.removeprefix("#").replace("/", ".")


def _without_id(schema: Schema) -> Schema:
    """A schema without its own address, from which references would be resolved."""
    return {key: value for key, value in schema.items() if key not in ("$id", "id")}


def _served(schema: Any, moved: Callable[[str], str]) -> Any:
    """A copy with changed references, and without the formats that are annotations."""
    if isinstance(schema, list):
        return [_served(each, moved) for each in schema]
    if not isinstance(schema, dict):
        return schema
    served: Schema = {}
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            served[key] = {name: _served(each, moved) for name, each in value.items()}
        elif key in _REFERENCES and isinstance(value, str):
            served[key] = moved(value)
        elif key in _DATA:
            served[key] = value
        elif key != "format" or not isinstance(value, str) or value in FORMATS:
            served[key] = _served(value, moved)
    return served
