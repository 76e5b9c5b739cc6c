"""The parts of a conversation in a request body: messages, tools, and the format of the answer."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from edgeflow.service.http.bodies import parse_json
from edgeflow_client.errors import InvalidArgument

MAX_PARTS = 64
MAX_CALLS = 64
MAX_ARGUMENTS = 64 << 10  # characters
MAX_ARGUMENT_VALUES = 4096
MAX_TOOLS = 64
KIND = "kind"  # error type: the value has none of the permitted types; `kind.KEY`: because of this key
TAG = "\0"  # prefix of a type's name in an error path, so that no key of a client can equal it
TEXT, LIST = f"{TAG}text", f"{TAG}list"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Schema: TypeAlias = dict[str, Any]


class OneUnknownKey(BaseModel):
    """An object of which only the first unknown key is reported: the library would describe each of them.

    null means the default of an optional key, and is ignored under an unknown key.
    """

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_key(cls, values: Any) -> Any:
        """The values without ignored nulls, and with only the first unknown key."""
        if not isinstance(values, dict):
            return values
        known = {field.alias or name: field.is_required() for name, field in cls.model_fields.items()}
        given = {key: value for key, value in values.items() if value is not None or known.get(key, False)}
        first = next((key for key in given if key not in known), None)
        return {key: value for key, value in given.items() if key in known or key == first}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(schema)
        inner = handler.resolve_ref_schema(made)
        for name, value in inner.get("properties", {}).items():
            if name not in inner.get("required", ()):
                inner["properties"][name] = _or_null(value)
        inner["additionalProperties"] = {"type": "null"}
        return made


class ClientObject(OneUnknownKey):
    """The base of every object a client sends. Unknown keys, NaN and values of the wrong type are rejected, and lists
    are checked up to their first error only.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class OnlyValues:
    """Marks an unsupported field of OpenAI's API. null and these values, which have no effect, are accepted."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self._values)}

    def _check(self, value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in self._values):
            permitted = ", ".join(json.dumps(each) for each in (None, *self._values))
            raise PydanticCustomError("unserved", "is not supported; permitted: {permitted}", {"permitted": permitted})
        return value


def by_key(key: str, **kinds: type[BaseModel]) -> Discriminator:
    """Chooses the type of an object by the value of its key; the types are tagged with `tag_of`."""

    def tag(value: Any) -> str | None:
        kind = value.get(key) if isinstance(value, dict) else getattr(value, key, None)  # an object, when it is dumped
        return tag_of(kinds[kind]) if isinstance(kind, str) and kind in kinds else None

    message = f"must be one of: {', '.join(kinds)}"
    return Discriminator(tag, custom_error_type=f"{KIND}.{key}", custom_error_message=message)


def tag_of(kind: type[BaseModel]) -> str:
    """The tag of a type that `by_key` chooses."""
    return f"{TAG}{kind.__name__}"


def text_or_list(of: str) -> Discriminator:
    """Chooses between a text (TEXT) and a list (LIST). of: the elements of the list, for messages."""

    def tag(value: Any) -> str | None:
        return TEXT if isinstance(value, str) else LIST if isinstance(value, list) else None

    return Discriminator(tag, custom_error_type=KIND, custom_error_message=f"must be a text or a list of {of}")


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema extended by null."""
    null = {"type": "null"}
    if null in schema.get("anyOf", ()):
        return schema
    outside: dict[str, Any] = {key: schema[key] for key in ("default", "description", "title") if key in schema}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {"anyOf": [inside, null], **outside}


class ImageUrl(ClientObject):
    """An image as `data:image/jpeg;base64,…` or png; other URLs are not fetched."""

    url: str
    detail: Literal["auto", "low", "high", "original"] = "auto"


class TextPart(ClientObject):
    """Text within a message."""

    type: Literal["text"]
    text: str


class ImagePart(ClientObject):
    """An image within a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class CalledFunction(ClientObject):
    """A called function."""

    name: Name
    arguments: str
    """A JSON object as text."""
    parsed_arguments: Any = None
    """Ignored; the openai package adds it to calls that it parsed."""

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        if len(text) > MAX_ARGUMENTS:
            raise ValueError(f"exceeds {MAX_ARGUMENTS} characters")
        try:
            values = parse_json(text.encode("utf-8", "surrogatepass"), MAX_ARGUMENT_VALUES)
        except InvalidArgument as error:
            raise ValueError(str(error).removeprefix("body: ")) from None
        if not isinstance(values, dict):
            raise ValueError("must be a JSON object")
        return text


class ToolCall(ClientObject):
    """A tool call in an earlier answer."""

    id: str = Field(max_length=64)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Ignored; calls in a stream have it."""


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag(tag_of(TextPart))] | Annotated[ImagePart, Tag(tag_of(ImagePart))],
    by_key("type", text=TextPart, image_url=ImagePart),
]
Content: TypeAlias = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[Annotated[list[Part], Field(fail_fast=True, max_length=MAX_PARTS)], Tag(LIST)],
    text_or_list("parts"),
]


class _NamedMessage(ClientObject):
    name: str | None = Field(None, max_length=64)


class InputMessage(_NamedMessage):
    """A system, developer or user message."""

    role: Literal["system", "developer", "user"]
    content: Content


class AssistantMessage(_NamedMessage):
    """An earlier answer of the model."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    refusal: str | None = None
    annotations: Annotated[Any, OnlyValues([])] = None
    parsed: Any = None
    """Ignored; the openai package adds it to answers that it parsed."""


class ToolMessage(_NamedMessage):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str = Field(max_length=64)


Message: TypeAlias = Annotated[
    Annotated[InputMessage, Tag(tag_of(InputMessage))]
    | Annotated[AssistantMessage, Tag(tag_of(AssistantMessage))]
    | Annotated[ToolMessage, Tag(tag_of(ToolMessage))],
    by_key(
        "role",
        system=InputMessage,
        developer=InputMessage,
        user=InputMessage,
        assistant=AssistantMessage,
        tool=ToolMessage,
    ),
]


class Function(ClientObject):
    """A function offered as a tool."""

    name: Name
    description: str = ""
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """The JSON schema of its arguments."""
    strict: bool | None = None


class Tool(ClientObject):
    """A tool that the answer may call."""

    type: Literal["function"]
    function: Function


class _Named(ClientObject):
    name: Name


class NamedTool(ClientObject):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: _Named


class PlainFormat(ClientObject):
    """Plain text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaOf(ClientObject):
    """A named JSON schema."""

    name: Name
    description: str = ""
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(ClientObject):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaOf


ResponseFormat: TypeAlias = Annotated[
    Annotated[PlainFormat, Tag(tag_of(PlainFormat))] | Annotated[SchemaFormat, Tag(tag_of(SchemaFormat))],
    by_key("type", text=PlainFormat, json_object=PlainFormat, json_schema=SchemaFormat),
]
