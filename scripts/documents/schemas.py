"""JSON schemas in words: the values of a field, its default."""

from __future__ import annotations

import json
import re
from typing import Any

TYPES = {"string": "text", "boolean": "true or false", "integer": "integer", "number": "number", "object": "object"}
PLURALS = {"text": "texts", "object": "objects", "integer": "integers", "number": "numbers"}


def section_of(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any] | None:
    """The object with named keys that a field refers to."""
    found = definitions.get(field.get("$ref", "").rpartition("/")[2])
    return found if found and "properties" in found else None


def kind_of(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The values that a field takes."""
    if "enum" in field or "const" in field:
        return ", ".join(f"`{_plain(value)}`" for value in field.get("enum", [field.get("const")]))
    if ways := [*field.get("anyOf", ()), *field.get("oneOf", ())]:
        kinds = [kind_of(each, definitions) for each in ways if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if alternatives := re.fullmatch(r"\^\(([\w|]+)\)\$", field.get("pattern", "")):
        return ", ".join(f"`{each}`" for each in alternatives[1].split("|") if each)
    if "properties" in field:
        return "object"
    if "$ref" in field:
        return kind_of(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if field.get("type") == "array":
        kind = kind_of(field.get("items", {}), definitions)
        most = f", at most {field['maxItems']:,}" if "maxItems" in field else ""
        return f"list of {PLURALS.get(kind, kind)}{most}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map from name to {kind_of(field['additionalProperties'], definitions)}"
    return TYPES.get(field.get("type", ""), "any") + _range(field)


def default_of(field: dict[str, Any]) -> str:
    """The default of a field."""
    if "default" not in field:
        optional = any(each.get("type") == "null" for each in field.get("anyOf", ()))
        return "unset" if optional else "empty" if field.get("type") in ("array", "object") else "see meaning"
    value = field["default"]
    if value is None:
        return "unset"
    return "empty" if value in ("", [], {}) else f"`{json.dumps(value, ensure_ascii=False)}`"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _range(field: dict[str, Any]) -> str:
    low, high = (None if each is None else _number(each) for each in (field.get("minimum"), field.get("maximum")))
    above = field.get("exclusiveMinimum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f", at least {low}"
    most = f", at most {high}" if high is not None else ""
    return most if above is None else f", above {_number(above)}{most}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)
